//! The keys that open the server, exchanged while it runs.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::file::{Digest, KeyFileError, Listed, digest, read};
use super::tenant::{Rules, Tenant};
use crate::config::Secret;
use crate::watched::Watched;

/// Whose key a request bears.
#[derive(Clone)]
pub struct Holder {
    pub tenant: Rc<Tenant>,
    pub is_admin: bool,
}

struct Key {
    digest: Digest,
    holder: Holder,
}

/// Where keys come from.
#[derive(Clone, Debug, Default)]
pub struct KeySources {
    /// Keys that open every route.
    pub given: Vec<Secret>,
    /// Those of administrators.
    pub admins: Vec<Secret>,
    /// The file of keys, read again when it changes.
    pub file: Option<PathBuf>,
    /// Whether the scheduler knows priorities.
    pub priorities: bool,
}

/// All keys. None is kept, only what it hashes to.
pub struct Keys {
    anybody: Rc<Tenant>,
    /// Those that do not come from the file.
    given: Vec<(Digest, bool)>,
    file: Option<(PathBuf, Watched)>,
    priorities: bool,
    table: RefCell<Vec<Key>>,
}

impl Keys {
    /// # Errors
    /// The file of keys cannot be used.
    pub fn load(sources: KeySources) -> Result<Self, KeyFileError> {
        let hashed = |keys: &[Secret], is_admin| {
            let keys = keys.iter().map(|key| digest(key.0.as_bytes()));
            keys.map(|key| (key, is_admin)).collect::<Vec<_>>()
        };
        let mut given = hashed(&sources.admins, true);
        given.extend(hashed(&sources.given, false));
        let file = sources
            .file
            .map(|path| (path.clone(), Watched::new([path])));
        let keys = Self {
            anybody: Tenant::new(Rules::default()),
            given,
            priorities: sources.priorities,
            table: RefCell::default(),
            file,
        };
        let listed = match &keys.file {
            Some((path, _)) => read(path, keys.priorities)?,
            None => Vec::new(),
        };
        keys.put(listed);
        Ok(keys)
    }

    /// Looks whether a file of keys could be used.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(path: &Path, priorities: bool) -> Result<(), KeyFileError> {
        read(path, priorities).map(drop)
    }

    /// Who comes without a key where none is asked for.
    pub fn anybody(&self) -> Rc<Tenant> {
        self.anybody.clone()
    }

    /// Whether ordinary routes ask for a key.
    pub fn are_asked_for(&self) -> bool {
        self.table.borrow().iter().any(|key| !key.holder.is_admin)
    }

    /// Whether some routes ask for the key of an administrator.
    pub fn know_admins(&self) -> bool {
        self.table.borrow().iter().any(|key| key.holder.is_admin)
    }

    /// Who holds the key `token`. It is hashed and compared with every key, so that the time taken tells nothing of
    /// where, or with which, it differs.
    pub fn holder(&self, token: &[u8]) -> Option<Holder> {
        let token = digest(token);
        let table = self.table.borrow();
        let mut found = u32::MAX;
        for (index, key) in (0..).zip(table.iter()) {
            found.conditional_assign(&index, key.digest.as_slice().ct_eq(&token));
        }
        table.get(found as usize).map(|key| key.holder.clone())
    }

    /// The holder of the key that hashes to `key`, or whoever comes without one.
    pub fn tenant(&self, key: Option<&str>) -> Option<Rc<Tenant>> {
        let Some(key) = key else {
            return Some(self.anybody());
        };
        let table = self.table.borrow();
        let mut tenants = table.iter().map(|key| &key.holder.tenant);
        let known = |tenant: &&Rc<Tenant>| tenant.key().is_some_and(|known| **known == *key);
        tenants.find(known).cloned()
    }

    /// Whether the file is another one than was read last.
    pub fn has_changed(&self) -> bool {
        (self.file.as_ref()).is_some_and(|(_, watched)| watched.have_changed())
    }

    /// Whether there is a file that could be read again.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the file again. One that cannot be used is refused, and what was read before stays.
    pub async fn reload(&self) {
        let Some((path, watched)) = &self.file else {
            return;
        };
        watched.mark();
        let path = path.clone();
        let priorities = self.priorities;
        let listed = tokio::task::spawn_blocking(move || read(&path, priorities)).await;
        match listed {
            Ok(Ok(listed)) => {
                let keys = listed.len();
                self.put(listed);
                tracing::info!(keys, "keys reloaded");
            }
            Ok(Err(error)) => tracing::error!(%error, "keys not reloaded; the old ones stay"),
            Err(error) => tracing::error!(%error, "keys not reloaded; the old ones stay"),
        }
    }

    /// Reloads when the file has changed.
    pub async fn watch(&self) {
        while let Some((_, watched)) = &self.file {
            watched.change().await;
            self.reload().await;
        }
    }

    /// Makes these the keys of the file. Who had a key before keeps what it has open and has used up.
    fn put(&self, listed: Vec<Listed>) {
        let mut table = self.table.borrow_mut();
        let mut known: HashMap<Digest, Holder> =
            (table.drain(..).map(|key| (key.digest, key.holder))).collect();
        let given =
            (self.given.iter()).map(|&(digest, is_admin)| (digest, is_admin, Rules::default()));
        let listed = (listed.into_iter()).map(|one| (one.digest, false, one.rules));
        let mut seen = HashSet::new();
        for (digest, is_admin, rules) in given.chain(listed) {
            // A key that stands in several places is taken as the first of them has it.
            if !seen.insert(digest) {
                continue;
            }
            let holder = known.remove(&digest).filter(|holder| {
                holder.tenant.set(rules.clone());
                holder.is_admin == is_admin
            });
            let holder = holder.unwrap_or_else(|| Holder {
                tenant: Tenant::of_key(hex(&digest).into(), rules),
                is_admin,
            });
            table.push(Key { digest, holder });
        }
        let weight = |key: &Key| f64::from(key.holder.tenant.weight());
        let all: f64 = table.iter().map(weight).sum();
        for key in table.iter() {
            key.holder.tenant.set_share(weight(key) / all);
        }
    }
}

fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::tests::rig::Scratch;

    /// Keys of a file with `text` in it, and those of `sources`.
    fn keys(scratch: &Scratch, text: &str, sources: KeySources) -> Keys {
        let path = scratch.0.join("keys");
        std::fs::write(&path, text).unwrap();
        let file = Some(path);
        Keys::load(KeySources { file, ..sources }).unwrap()
    }

    #[test]
    fn every_key_opens_and_admins_are_told_apart() {
        let scratch = Scratch::new();
        let given = KeySources {
            given: ["one", "two"].map(|key| Secret(key.to_owned())).to_vec(),
            admins: vec![Secret("root".to_owned())],
            ..KeySources::default()
        };
        let keys = keys(&scratch, "three\n", given);
        for (key, is_admin) in [
            ("one", false),
            ("two", false),
            ("three", false),
            ("root", true),
        ] {
            let holder = keys.holder(key.as_bytes()).unwrap();
            assert_eq!(holder.is_admin, is_admin, "{key}");
            assert!(holder.tenant.is_within(4, 1) && !holder.tenant.is_within(4, 2));
        }
        for wrong in ["", "on", "one ", "four", "sha256:"] {
            assert!(keys.holder(wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert!(keys.are_asked_for() && keys.know_admins());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_reload_keeps_what_a_holder_has_used_and_a_bad_file_changes_nothing() {
        let scratch = Scratch::new();
        let keys = keys(&scratch, "a rpm=1 weight=3\nb\n", KeySources::default());
        let now = Instant::now();
        let a = keys.holder(b"a").unwrap().tenant;
        a.take_request(now).unwrap();
        let path = scratch.0.join("keys");
        for bad in ["", "a rpm=x", "a a"] {
            std::fs::write(&path, bad).unwrap();
            keys.reload().await;
            assert!(keys.holder(b"a").is_some() && keys.holder(b"b").is_some());
        }
        std::fs::remove_file(&path).unwrap();
        keys.reload().await;
        assert!(keys.holder(b"b").is_some());
        assert!(a.is_within(4, 3) && !a.is_within(4, 4));
        std::fs::write(&path, "c\na rpm=1\n").unwrap();
        keys.reload().await;
        assert!(keys.holder(b"b").is_none() && keys.holder(b"c").is_some());
        let again = keys.holder(b"a").unwrap().tenant;
        assert!(Rc::ptr_eq(&a, &again));
        let by_hash = keys.tenant(a.key().map(|key| &**key)).unwrap();
        assert!(Rc::ptr_eq(&a, &by_hash) && keys.tenant(Some("a")).is_none());
        again.take_request(now).unwrap_err();
        assert!(a.is_within(4, 2) && !a.is_within(4, 3));
    }
}
