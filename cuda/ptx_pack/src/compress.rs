use std::io::{self, Write};

use lzma_rust2::{LzmaOptions, LzmaWriter};

use crate::{WINDOW_BYTES, numbers};

/// How much time compression may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// For a build that is tried here.
    Fast,
    /// For a build that is given away: smaller by a quarter, in several times the time.
    Small,
}

impl Compression {
    fn options(self) -> LzmaOptions {
        let preset = match self {
            Compression::Fast => LzmaOptions::with_preset(1),
            // Repetitions as long as the format has them: kernels of a family share whole pages of text.
            Compression::Small => LzmaOptions {
                nice_len: 273,
                ..LzmaOptions::with_preset(6)
            },
        };
        LzmaOptions {
            dict_size: WINDOW_BYTES as u32,
            // Text has no alignment that would foretell a byte.
            pb: 0,
            ..preset
        }
    }
}

/// PTX modules, one after the other, in little space.
///
/// # Errors
/// If a register has a name that no compiler gives it, so that the text would not come out as it went in.
pub fn compress(text: &str, compression: Compression) -> io::Result<Vec<u8>> {
    let packed = numbers::distances(text)?;
    let size = Some(packed.len() as u64);
    // A .lzma file: 13 bytes that say how to read it, and the stream.
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &compression.options(), size)?;
    writer.write_all(packed.as_bytes())?;
    writer.finish()
}
