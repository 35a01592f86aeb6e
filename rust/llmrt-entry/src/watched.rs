//! Files that are read again when they change.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Modification time, size and inode of each file that is there.
type Stamp = Vec<Option<(i64, i64, u64, u64)>>;

/// Files, and what they were like when they were read last, successfully or not.
pub struct Watched {
    paths: Vec<PathBuf>,
    read: RefCell<Stamp>,
}

impl Watched {
    /// Files that are about to be read.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths: Vec<_> = paths.into_iter().collect();
        Self {
            read: RefCell::new(stamp(&paths)),
            paths,
        }
    }

    /// They are about to be read again.
    pub fn mark(&self) {
        self.read.replace(stamp(&self.paths));
    }

    /// Whether they are not what was read.
    pub fn have_changed(&self) -> bool {
        stamp(&self.paths) != *self.read.borrow()
    }

    /// Waits until they have changed and then stayed the same for a moment: whoever writes them may not be done, and
    /// several cannot be replaced at one stroke.
    pub async fn change(&self) {
        let mut before = self.read.borrow().clone();
        loop {
            tokio::time::sleep(LOOK).await;
            let now = stamp(&self.paths);
            if now == before && now != *self.read.borrow() {
                return;
            }
            before = now;
        }
    }
}

fn stamp(paths: &[PathBuf]) -> Stamp {
    let look = |path: &PathBuf| {
        let seen = std::fs::metadata(path).ok()?;
        Some((seen.mtime(), seen.mtime_nsec(), seen.size(), seen.ino()))
    };
    paths.iter().map(look).collect()
}
