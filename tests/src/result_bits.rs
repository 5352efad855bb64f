//! The bits of results in the simulator, held to what is recorded: a bound lets through what changes a result by less, such as the
//! last coefficient of a polynomial or the number from which another form of it stands.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use crc32fast::Hasher;
use ferroflash::HostTensor;
use ferroflash::backend::sim::replaced_kernel;

/// Asks for the bits to be recorded anew, whatever its value.
const RECORD_VAR: &str = "FERROFLASH_RECORD_BITS";

/// A checksum of what tensors hold, what lies between their elements included.
pub fn checksum<'a>(tensors: impl IntoIterator<Item = &'a HostTensor>) -> u32 {
    let mut hasher = Hasher::new();
    for tensor in tensors {
        hasher.update(tensor.bytes());
    }
    hasher.finalize()
}

/// Checksums in hexadecimal, by the names of cases.
type Checksums = BTreeMap<String, String>;

/// The checksums of a test's cases.
#[derive(Default)]
pub struct ResultBits {
    test: &'static str,
    /// What is recorded: in the test itself, which also runs where there is no source tree.
    recorded: &'static str,
    found: Checksums,
}

/// The [`ResultBits`] of a test, an expression that `concat!` takes, of which `tests/result-bits/<test>.json` is the record: `{}`,
/// before there is one.
#[macro_export]
macro_rules! result_bits {
    ($test:expr) => {
        $crate::result_bits::ResultBits::of(
            $test,
            include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/result-bits/",
                $test,
                ".json"
            )),
        )
    };
}

impl ResultBits {
    /// Of a test for which `recorded` is recorded.
    pub fn of(test: &'static str, recorded: &'static str) -> Self {
        Self {
            test,
            recorded,
            found: Checksums::new(),
        }
    }

    /// Takes the checksum of `case`, once.
    pub fn take(&mut self, case: String, checksum: u32) {
        let before = self.found.insert(case, format!("{checksum:08x}"));
        assert!(before.is_none(), "two cases of a name");
    }

    /// Where they are recorded.
    fn path(&self) -> PathBuf {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("result-bits");
        folder.join(format!("{}.json", self.test))
    }

    /// Compares all of them with what is recorded, or records them.
    ///
    /// # Panics
    /// If a checksum is another, or none is recorded.
    pub fn finish(self) {
        let test = self.test;
        if env::var_os(RECORD_VAR).is_some() {
            let text = serde_json::to_string_pretty(&self.found).expect("texts by names");
            fs::write(self.path(), text + "\n").expect("the folder is there");
            return;
        }
        let recorded: Checksums = serde_json::from_str(self.recorded).expect("it was written here");
        let differs = |(case, bits): &(&String, &String)| recorded.get(*case) != Some(*bits);
        let others: Vec<_> = self.found.iter().filter(differs).collect();
        assert!(
            others.is_empty(),
            "{test}: other bits than recorded: {others:#?}\nif they are meant, record them: {RECORD_VAR}=1 cargo test -p ferroflash-tests"
        );
        let is_whole = replaced_kernel().is_some() || self.found.len() == recorded.len();
        assert!(is_whole, "{test}: cases are recorded that are none");
    }
}
