//! The certificates of a listening socket, exchanged while connections run.

use std::cell::RefCell;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::tls::{TlsError, load};
use crate::config::Tls;
use crate::watched::Watched;

/// What new handshakes use. A connection keeps what its own handshake used.
pub struct Certificates {
    tls: Tls,
    http2: bool,
    current: RefCell<Arc<ServerConfig>>,
    files: Watched,
}

impl Certificates {
    /// # Errors
    /// The files cannot be read or used.
    pub fn load(tls: &Tls, http2: bool) -> Result<Self, TlsError> {
        let files = files(tls);
        Ok(Self {
            current: RefCell::new(Arc::new(load(tls, http2)?)),
            files,
            tls: tls.clone(),
            http2,
        })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.current.borrow().clone().into()
    }

    /// Reads the files again. What cannot be used is refused, and what was loaded before stays.
    pub async fn reload(&self) {
        self.files.mark();
        let (tls, http2) = (self.tls.clone(), self.http2);
        // The password of a key is hashed for a good part of a second.
        let loaded = tokio::task::spawn_blocking(move || load(&tls, http2)).await;
        let certfile = self.tls.certfile.display();
        match loaded {
            Ok(Ok(config)) => {
                self.current.replace(Arc::new(config));
                tracing::info!(%certfile, "certificates reloaded");
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "certificates not reloaded; the old ones stay");
            }
            Err(error) => tracing::error!(%error, "certificates not reloaded; the old ones stay"),
        }
    }

    /// Reloads when the files have changed.
    pub async fn watch(&self) {
        loop {
            self.files.change().await;
            self.reload().await;
        }
    }
}

fn files(tls: &Tls) -> Watched {
    let others = [&tls.keyfile, &tls.key_password_file, &tls.client_ca];
    let others = others.into_iter().flatten().cloned();
    Watched::new([tls.certfile.clone()].into_iter().chain(others))
}
