//! The certificates of a listening socket, exchanged while connections run.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::tls::{TlsError, load};
use crate::config::Tls;

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(1);

/// What new handshakes use. A connection keeps what its own handshake used.
pub struct Certificates {
    tls: Tls,
    http2: bool,
    current: RefCell<Arc<ServerConfig>>,
    /// The files as they were when they were read last, successfully or not.
    read: RefCell<Stamp>,
}

/// Tells whether files have changed: modification time, size and inode of each.
type Stamp = Vec<Option<(i64, i64, u64, u64)>>;

impl Certificates {
    /// # Errors
    /// The files cannot be read or used.
    pub fn load(tls: &Tls, http2: bool) -> Result<Self, TlsError> {
        let read = stamp(tls);
        Ok(Self {
            current: RefCell::new(Arc::new(load(tls, http2)?)),
            read: RefCell::new(read),
            tls: tls.clone(),
            http2,
        })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.current.borrow().clone().into()
    }

    /// Reads the files again. What cannot be used is refused, and what was loaded before stays.
    pub async fn reload(&self) {
        self.read.replace(stamp(&self.tls));
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

    /// Reloads when the files have changed and then stayed the same for a moment: certificate and key cannot be replaced
    /// at one stroke.
    pub async fn watch(&self) {
        let mut before = self.read.borrow().clone();
        loop {
            tokio::time::sleep(LOOK).await;
            let now = stamp(&self.tls);
            if now == before && now != *self.read.borrow() {
                self.reload().await;
            }
            before = now;
        }
    }
}

fn stamp(tls: &Tls) -> Stamp {
    let files: [Option<&PathBuf>; 4] = [
        Some(&tls.certfile),
        tls.keyfile.as_ref(),
        tls.key_password_file.as_ref(),
        tls.client_ca.as_ref(),
    ];
    let look = |path: &PathBuf| {
        let seen = std::fs::metadata(path).ok()?;
        Some((seen.mtime(), seen.mtime_nsec(), seen.size(), seen.ino()))
    };
    files.into_iter().flatten().map(look).collect()
}
