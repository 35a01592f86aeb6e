//! Sockets that a process is handed by the one that started it.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use socket2::{SockRef, Socket};

/// Takes over descriptor `fd` of a listening socket, the configuration's `listen_fd`, and makes it non-blocking.
///
/// # Errors
/// The descriptor is not open or not a socket that listens; then it is left alone.
pub fn adopt_listener(fd: i32) -> io::Result<OwnedFd> {
    let invalid = |reason: &str| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("listen_fd {fd} {reason}"),
        )
    };
    if fd < 0 {
        return Err(invalid("is not a descriptor"));
    }
    // SAFETY: only looked at; a descriptor that is not open makes the look fail.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    if !SockRef::from(&borrowed).is_listener()? {
        return Err(invalid("does not listen"));
    }
    // SAFETY: it is open, and the configuration hands it over: nobody else in this process closes it.
    let socket = Socket::from(unsafe { OwnedFd::from_raw_fd(fd) });
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::{AsRawFd, IntoRawFd};

    use super::*;

    #[test]
    fn a_socket_that_listens_is_taken_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let adopted = TcpListener::from(adopt_listener(listener.into_raw_fd()).unwrap());
        assert_eq!(adopted.local_addr().unwrap(), address);
        assert_eq!(
            adopted.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
    }

    #[test]
    fn what_does_not_listen_is_left_alone() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        assert!(adopt_listener(fd).is_err());
        socket.local_addr().expect("it is still open");
        assert!(adopt_listener(-1).is_err() && adopt_listener(i32::MAX).is_err());
    }
}
