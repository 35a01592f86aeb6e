//! Says of each frame on standard input whether it is a message: the Python twin's tests compare verdicts.
//!
//! In: frames, each behind its length as a little-endian u32. Out: one line each, `ok` or the error.

use std::io::{self, BufWriter, Read, Write};

use llmrt_wire::Message;

fn main() -> io::Result<()> {
    let mut input = Vec::new();
    io::stdin().lock().read_to_end(&mut input)?;
    let mut output = BufWriter::new(io::stdout().lock());
    let mut rest = input.as_slice();
    while let Some((length, tail)) = rest.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((raw, tail)) = tail.split_at_checked(length) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match Message::decode(raw) {
            Ok(_) => writeln!(output, "ok")?,
            Err(error) => writeln!(output, "{}", error.to_string().replace('\n', " "))?,
        }
        rest = tail;
    }
    output.flush()
}
