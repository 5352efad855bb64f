//! `attend --output` to a path that already exists: links, devices, pipes, files.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use ferroflash_tests::command::ferroflash;
use ferroflash_tests::folder::{Folder, tensors};

/// Whether a file's bytes hold o and lse.
fn is_result(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.contains("\"o\":") && text.contains("\"lse\":")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_file_keeps_its_mode() {
    let folder = Folder::with(&tensors());
    let output = folder.output();
    fs::write(&output, "old").unwrap();
    fs::set_permissions(&output, fs::Permissions::from_mode(0o600)).unwrap();
    folder.attend(&[]).succeeded();
    assert!(is_result(&fs::read(&output).unwrap()));
    assert_eq!(mode(&output), 0o600);
}

#[test]
fn links_are_followed() {
    let folder = Folder::with(&tensors());
    let output = folder.output();
    let link = output.with_file_name("link");
    let link_to_link = output.with_file_name("link to link");
    symlink(output.file_name().unwrap(), &link).unwrap();
    symlink(&link, &link_to_link).unwrap();
    // The link's target first does not exist, then is a file.
    for _ in 0..2 {
        folder.attend_to(&link_to_link, &[]).succeeded();
        assert!(is_result(&fs::read(&output).unwrap()));
        assert!(link.is_symlink() && link_to_link.is_symlink());
        fs::write(&output, "old").unwrap();
    }
    let circle = output.with_file_name("circle");
    symlink("circle", &circle).unwrap();
    let outcome = folder.attend_to(&circle, &[]);
    let (argument, _) = outcome.failed(2);
    assert_eq!(argument, "--output");
}

#[test]
fn a_fifo_is_written_and_stays() {
    let folder = Folder::with(&tensors());
    let fifo = folder.output();
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let reader = {
        let fifo = fifo.clone();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            File::open(fifo).unwrap().read_to_end(&mut bytes).unwrap();
            bytes
        })
    };
    folder.attend(&[]).succeeded();
    assert!(is_result(&reader.join().unwrap()));
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
}

#[test]
fn arguments_need_not_be_unicode() {
    let outcome = ferroflash([std::ffi::OsStr::from_bytes(b"\xff")]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
}

/// A message that cannot be written is lost; the result is not.
#[test]
fn a_full_standard_error_loses_no_result() {
    let folder = Folder::with(&tensors());
    let full = File::options().write(true).open("/dev/full").unwrap();
    let status = Command::new(ferroflash_tests::paths::binary())
        .arg("attend")
        .arg(folder.input())
        .arg("--output")
        .arg(folder.output())
        .args(["--backend", "cpu"])
        .stderr(full)
        .status();
    assert!(status.unwrap().success());
    assert!(is_result(&fs::read(folder.output()).unwrap()));
}
