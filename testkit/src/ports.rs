//! Free ports of the loopback interface, which no other test process on this machine gets.
//!
//! A test must know a server's port before the server binds it. If the kernel chose the port, another process could get
//! the port before the server binds it. So ports come from below the range from which the kernel chooses. They are
//! divided into blocks, and a lock file reserves a block for one process.

use std::fs::File;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

/// First port of the first block.
const FIRST_PORT: u16 = 10_000;
/// Number of blocks. The last block ends below 32,768, where the range of the kernel begins by default.
const BLOCKS: u16 = 44;
/// Number of ports in a block. Tests need many ports, because a port stays in use while a client keeps a connection to
/// its ended server.
const BLOCK_PORTS: u16 = 500;

/// A reserved block of ports.
struct Block {
    first: u16,
    /// Offset of the next port to try, counted from `first`.
    next: u16,
    /// Lock file of the block. It is locked until the process ends.
    _lock: File,
}

/// Returns `N` addresses `127.0.0.1:PORT` with different free ports.
///
/// # Panics
/// Every block is reserved, or every port of this process's block is in use.
#[must_use]
pub fn free_addresses<const N: usize>() -> [String; N] {
    static BLOCK: Mutex<Option<Block>> = Mutex::new(None);
    let mut block = BLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let block = block.get_or_insert_with(Block::reserve);
    std::array::from_fn(|_| format!("127.0.0.1:{}", block.free_port()))
}

impl Block {
    fn reserve() -> Self {
        let folder = std::env::temp_dir();
        for number in 0..BLOCKS {
            // The lock file of another user cannot be opened, so the next block is tried.
            let path = folder.join(format!("varve-test-ports-{number}.lock"));
            let Ok(lock) = File::options().write(true).create(true).truncate(false).open(path) else { continue };
            if lock.try_lock().is_ok() {
                return Self { first: FIRST_PORT + number * BLOCK_PORTS, next: 0, _lock: lock };
            }
        }
        panic!("all {BLOCKS} blocks of ports for tests are reserved");
    }

    fn free_port(&mut self) -> u16 {
        for _ in 0..BLOCK_PORTS {
            let port = self.first + self.next;
            self.next = (self.next + 1) % BLOCK_PORTS;
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return port;
            }
        }
        panic!("no port of {}..{} is free", self.first, self.first + BLOCK_PORTS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_process_differ_and_can_be_bound() {
        let addresses: [String; 20] = free_addresses();
        let listeners: Vec<_> = addresses.iter().map(|address| TcpListener::bind(address).unwrap()).collect();
        assert_eq!(listeners.len(), 20);
    }

    #[test]
    fn a_reserved_block_is_not_reserved_again() {
        let one = Block::reserve();
        let two = Block::reserve();
        assert_ne!(one.first, two.first);
    }
}
