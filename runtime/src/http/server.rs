//! Listening: the sockets, their limits, and the end.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::rt::net::TcpStream;
use actix_web::{HttpServer, web};
use socket2::SockRef;

use super::{Service, app};

/// How long a client may take to send a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a closing connection may take.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an idle connection is kept.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// How long responses that are written already may take to leave, once the server stops.
const FLUSH_SECS: u64 = 2;

/// How long a client may take nothing of what is written to it. The kernel then gives the connection up, and with it
/// the response that it held.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Which routes an address has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    All,
    /// Decisions and models: health and metrics are elsewhere.
    Decisions,
    /// Health, metrics, and what only whoever runs the server may do.
    Admin,
}

impl Surface {
    pub(super) fn decides(self) -> bool {
        self != Surface::Admin
    }

    pub(super) fn reports(self) -> bool {
        self != Surface::Decisions
    }

    pub(super) fn administrates(self) -> bool {
        self == Surface::Admin
    }
}

/// A server on its addresses; it serves once `server` is awaited.
pub struct Listening {
    pub server: Server,
    pub address: SocketAddr,
}

/// Binds `address`; port 0 takes a free one.
///
/// A client that closes or half-closes its connection drops the future of its request, and with it the queued work.
///
/// # Errors
/// When the address cannot be bound.
pub fn listen(
    service: &web::Data<Service>,
    surface: Surface,
    address: SocketAddr,
    workers: Option<NonZeroUsize>,
) -> io::Result<Listening> {
    let service = web::Data::clone(service);
    let mut server = HttpServer::new(move || app(&service, surface))
        .client_request_timeout(HEAD_TIMEOUT)
        .client_disconnect_timeout(DISCONNECT_TIMEOUT)
        .keep_alive(KEEP_ALIVE)
        .h1_allow_half_closed(false)
        .shutdown_timeout(FLUSH_SECS)
        .on_connect(|connection, _| bound_writing(connection))
        .disable_signals();
    if let Some(workers) = workers {
        server = server.workers(workers.get());
    }
    let server = server.bind(address)?;
    let address = server.addrs().first().copied().unwrap_or(address);
    Ok(Listening { server: server.run(), address })
}

/// Bounds how long what was written may stay unread (`TCP_USER_TIMEOUT`, RFC 5482): actix sets no limit of its own.
fn bound_writing(connection: &dyn Any) {
    let Some(stream) = connection.downcast_ref::<TcpStream>() else { return };
    if let Err(error) = SockRef::from(stream).set_tcp_user_timeout(Some(UNREAD_TIMEOUT)) {
        tracing::debug!(%error, "a connection has no limit on unread data");
    }
}
