use crate::GgufError;

/// Reads little-endian values front to back; asking for more than is left is an error, never a panic.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    /// The next `len` bytes; `what` names them in the error.
    pub fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let truncated = GgufError::Truncated {
            what,
            offset: self.position,
        };
        let rest = &self.bytes[self.position..];
        match usize::try_from(len) {
            Ok(len) if len <= rest.len() => {
                self.position += len;
                Ok(&rest[..len])
            }
            _ => Err(truncated),
        }
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string: its length in bytes as u64, then UTF-8.
    pub fn string(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let offset = self.position;
        let len = self.u64(what)?;
        std::str::from_utf8(self.take(len, what)?)
            .map_err(|_| GgufError::Invalid(format!("{what} at byte {offset} is not UTF-8")))
    }
}
