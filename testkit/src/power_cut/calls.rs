//! The C library's functions that change files, as a test program defines them.

/// Defines the C library's functions that change files, so that the [recorder](crate::power_cut::recorder) sees all
/// calls in this program. They are defined in the test program itself: from a library, the linker would take them only
/// if nothing before had needed them.
#[macro_export]
macro_rules! record_file_operations {
    () => {
        mod file_operations {
            #![allow(unsafe_code, reason = "functions of the C library are defined")]
            #![allow(clippy::undocumented_unsafe_blocks, reason = "all arguments are passed on unchanged")]

            use std::ffi::{c_char, c_int, c_uint, c_void};

            use $crate::power_cut::recorder;

            // The C library's functions are variadic. Integers are passed in the same registers, and the system ignores
            // a mode that the caller did not pass.
            $crate::record_file_operations! {
                open(name: *const c_char, flags: c_int, mode: u32) -> c_int =
                    recorder::openat(recorder::WORKING_DIRECTORY, name, flags, mode);
                open64(name: *const c_char, flags: c_int, mode: u32) -> c_int =
                    recorder::openat(recorder::WORKING_DIRECTORY, name, flags, mode);
                openat(directory: c_int, name: *const c_char, flags: c_int, mode: u32) -> c_int =
                    recorder::openat(directory, name, flags, mode);
                openat64(directory: c_int, name: *const c_char, flags: c_int, mode: u32) -> c_int =
                    recorder::openat(directory, name, flags, mode);
                close(file: c_int) -> c_int = recorder::close(file);
                write(file: c_int, bytes: *const c_void, count: usize) -> isize = recorder::write(file, bytes, count);
                pwrite(file: c_int, bytes: *const c_void, count: usize, offset: i64) -> isize =
                    recorder::pwrite(file, bytes, count, offset);
                pwrite64(file: c_int, bytes: *const c_void, count: usize, offset: i64) -> isize =
                    recorder::pwrite(file, bytes, count, offset);
                ftruncate(file: c_int, length: i64) -> c_int = recorder::ftruncate(file, length);
                ftruncate64(file: c_int, length: i64) -> c_int = recorder::ftruncate(file, length);
                fallocate(file: c_int, mode: c_int, offset: i64, length: i64) -> c_int =
                    recorder::fallocate(file, mode, offset, length);
                fallocate64(file: c_int, mode: c_int, offset: i64, length: i64) -> c_int =
                    recorder::fallocate(file, mode, offset, length);
                fsync(file: c_int) -> c_int = recorder::fsync(file);
                fdatasync(file: c_int) -> c_int = recorder::fdatasync(file);
                sync_file_range(file: c_int, offset: i64, length: i64, flags: c_uint) -> c_int =
                    recorder::sync_file_range(file, offset, length, flags);
                rename(from: *const c_char, to: *const c_char) -> c_int = recorder::rename(from, to);
                link(from: *const c_char, to: *const c_char) -> c_int =
                    recorder::linkat(recorder::WORKING_DIRECTORY, from, recorder::WORKING_DIRECTORY, to, 0);
                linkat(from_in: c_int, from: *const c_char, to_in: c_int, to: *const c_char, flags: c_int) -> c_int =
                    recorder::linkat(from_in, from, to_in, to, flags);
                unlink(name: *const c_char) -> c_int =
                    recorder::unlinkat(recorder::WORKING_DIRECTORY, name, recorder::REMOVE_FILE);
                rmdir(name: *const c_char) -> c_int =
                    recorder::unlinkat(recorder::WORKING_DIRECTORY, name, recorder::REMOVE_DIRECTORY);
                unlinkat(directory: c_int, name: *const c_char, flags: c_int) -> c_int =
                    recorder::unlinkat(directory, name, flags);
                mkdir(name: *const c_char, mode: u32) -> c_int = recorder::mkdir(name, mode);
            }
        }
    };
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $call:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                #[allow(unused_unsafe, reason = "some functions are safe")]
                unsafe {
                    $call
                }
            }
        )*
    };
}
