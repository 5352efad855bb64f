//! A safetensors file whose tensors are read one by one, never the whole file at once: it may fill most of the memory.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};

use crate::words::shortened;

/// An open file.
pub struct TensorFile {
    source: Box<dyn Source>,
    header: Metadata,
    /// Offset of the first tensor, in bytes.
    data_start: u64,
}

trait Source: Read + Seek {}
impl<T: Read + Seek> Source for T {}

/// Why a file cannot be opened.
pub enum Unusable {
    /// The system's error.
    Io(io::Error),
    /// The content is not what it should be.
    Content(String),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Bytes of the field that holds the header's length.
const LENGTH_BYTES: u64 = 8;
/// Largest number of characters of a message about a header, which may quote a name of any length.
const MOST_OF_REASON: usize = 300;

impl TensorFile {
    /// Reads the header.
    pub fn open(path: &Path) -> Result<Self, Unusable> {
        let mut source = source(path)?;
        let size = source.seek(SeekFrom::End(0))?;
        source.rewind()?;
        let mut length = [0; LENGTH_BYTES as usize];
        let cut = |what: &str| Unusable::Content(format!("{size} bytes, too few for {what}"));
        if size < LENGTH_BYTES {
            return Err(cut("the length of its header"));
        }
        source.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        let data_start = length.saturating_add(LENGTH_BYTES);
        if size < data_start {
            return Err(cut(&format!("a header of {length}")));
        }
        let mut header = Vec::new();
        source.by_ref().take(length).read_to_end(&mut header)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|error| Unusable::Content(shortened(&error.to_string(), MOST_OF_REASON)))?;
        let data = header.data_len() as u64;
        if data_start.checked_add(data) != Some(size) {
            let wrong = format!(
                "{} bytes of tensors, by its header {data}",
                size - data_start
            );
            return Err(Unusable::Content(wrong));
        }
        Ok(Self {
            source,
            header,
            data_start,
        })
    }

    /// Dtype and shape of a tensor, if there is one of this name.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name)
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort_unstable();
        names
    }

    /// The bytes of a tensor.
    pub fn read(&mut self, info: &TensorInfo) -> io::Result<Vec<u8>> {
        let (begin, end) = info.data_offsets;
        let mut bytes = vec![0; end - begin];
        self.source
            .seek(SeekFrom::Start(self.data_start + begin as u64))?;
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Opens a file; one that cannot seek, such as a pipe, is read into memory.
fn source(path: &Path) -> io::Result<Box<dyn Source>> {
    let mut file = File::open(path)?;
    if file.metadata()?.is_file() {
        return Ok(Box::new(file));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Box::new(Cursor::new(bytes)))
}
