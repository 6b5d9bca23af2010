//! The process at the other end of a connection over the loopback interface, by the tables in `/proc`.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::Party;

/// Number of attempts to find a process. A process that has just been started is not yet in the description.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// The processes of a cluster, which its description names.
#[derive(Debug)]
pub(super) struct Callers {
    description: PathBuf,
}

impl Callers {
    pub(super) fn new(description: PathBuf) -> Self {
        Self { description }
    }

    /// Returns the process at the end `peer` of a connection whose other end is `own`; `None` if it has gone.
    pub(super) fn find(&self, peer: SocketAddr, own: SocketAddr) -> Option<Party> {
        for _ in 0..ATTEMPTS {
            let link = format!("socket:[{}]", inode(peer, own)?);
            let mut known = self.processes().into_iter();
            if let Some((party, _)) = known.find(|(_, pid)| has_open(*pid, &link)) {
                return Some(party);
            }
            std::thread::sleep(PAUSE);
        }
        None
    }

    /// Returns the processes and their ids.
    fn processes(&self) -> Vec<(Party, i64)> {
        let description: Value =
            fs::read(&self.description).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let of = |kind: &str| description[kind].as_array().cloned().unwrap_or_default();
        let nodes = of("nodes").into_iter().filter_map(|node| {
            let id = usize::try_from(node["id"].as_u64()?).ok()?;
            Some((Party::Node(id), node["pid"].as_i64()?))
        });
        let routers = of("routers").into_iter().enumerate();
        let routers = routers.filter_map(|(number, router)| Some((Party::Router(number), router["pid"].as_i64()?)));
        nodes.chain(routers).collect()
    }
}

/// Returns the inode of the socket with these addresses. Connections to different addresses may have the same local
/// port, so the local address alone does not tell whose socket it is.
fn inode(local: SocketAddr, remote: SocketAddr) -> Option<String> {
    let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (local, remote) else { return None };
    let wanted = [local, remote]
        .map(|address| format!("{:08X}:{:04X}", u32::from_le_bytes(address.ip().octets()), address.port()));
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    // The columns are: number, local address, remote address, state, queues, timer, retransmissions, user, timeout,
    // inode.
    let columns = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let found = table.lines().skip(1).map(columns).find(|columns| columns.get(1..3) == Some(&wanted[..]));
    found.and_then(|columns| columns.get(9).cloned()).filter(|inode| inode != "0")
}

fn has_open(pid: i64, link: &str) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd"));
    files
        .into_iter()
        .flatten()
        .flatten()
        .any(|file| fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == link))
}

#[test]
fn the_process_of_a_connection_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let description = folder.path().join("cluster.json");
    let own = std::process::id();
    let text = serde_json::json!({"nodes": [{"id": 7, "pid": own}], "routers": [{"pid": 1}]}).to_string();
    fs::write(&description, text).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _caller = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, peer) = listener.accept().unwrap();
    assert_eq!(Callers::new(description).find(peer, stream.local_addr().unwrap()), Some(Party::Node(7)));
}

#[tokio::test]
async fn connections_from_one_port_to_different_addresses_are_distinguished() {
    let connect = async |local: SocketAddr| {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(local).unwrap();
        let stream = socket.connect(address).await.unwrap();
        (inode(stream.local_addr().unwrap(), address), stream)
    };
    let (first, stream) = connect("127.0.0.1:0".parse().unwrap()).await;
    let (second, _other) = connect(stream.local_addr().unwrap()).await;
    assert!(first.is_some() && second.is_some() && first != second, "{first:?}, {second:?}");
}
