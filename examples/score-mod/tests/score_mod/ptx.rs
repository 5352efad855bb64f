//! The PTX of all kernels, as text.

use std::fs;
use std::path::Path;

/// No kernel calls a function: one that is not inlined costs registers, and a call that is left is a panic, most likely, of a check that
/// the compiler did not see to hold.
#[test]
fn kernels_call_nothing() {
    let table = Path::new(env!("SCORE_MOD_PTX"));
    let files = fs::read_dir(table.parent().unwrap()).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let texts = paths.filter(|path| path.extension().is_some_and(|is| is == "ptx"));
    let mut count = 0;
    for path in texts {
        let text = fs::read_to_string(&path).unwrap();
        let call = text
            .lines()
            .find(|line| line.trim_start().starts_with("call"));
        assert_eq!(call, None, "{}", path.display());
        count += 1;
    }
    assert!(count > 0);
}
