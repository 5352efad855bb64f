//! Every bad input file is refused by one line that names it, with exit code 2, and leaves no file.

use std::fs;

use ferroflash_tests::files::{Dtype, Tensor};
use ferroflash_tests::folder::{Folder, K, V, tensors};

/// Asserts that `attend` refuses `tensors`, on `argument`.
#[track_caller]
fn refused_tensors(tensors: &[Tensor], argument: &str, rest: &str) {
    let folder = Folder::with(tensors);
    let outcome = folder.attend(&[]);
    assert_eq!(outcome.failed(2), (argument, rest));
    folder.is_untouched();
}

/// The default tensors with one of another shape.
fn reshaped(name: &str, shape: &[usize]) -> Vec<Tensor> {
    let mut tensors = tensors();
    for tensor in tensors.iter_mut().filter(|tensor| tensor.name == name) {
        *tensor = Tensor::new(tensor.name, tensor.dtype, shape);
    }
    tensors
}

#[test]
fn the_default_input_is_good() {
    let folder = Folder::with(&tensors());
    folder.attend(&[]).succeeded();
    assert!(folder.output().exists());
}

#[test]
fn a_missing_file() {
    let folder = Folder::with(&[]);
    fs::remove_file(folder.input()).expect("the input is there");
    let outcome = folder.attend(&[]);
    let wrong = format!(
        "{}: No such file or directory (os error 2); a safetensors file to read",
        folder.input().display()
    );
    assert_eq!(outcome.failed(2), ("INPUT", wrong.as_str()));
    folder.is_untouched();
}

#[test]
fn a_truncated_file() {
    let folder = Folder::with(&tensors());
    let bytes = fs::read(folder.input()).expect("readable");
    // In the length, in the header, and in the data.
    for length in [0, 5, 40, bytes.len() - 1] {
        fs::write(folder.input(), &bytes[..length]).expect("writable");
        let outcome = folder.attend(&[]);
        let (argument, rest) = outcome.failed(2);
        assert_eq!(argument, "INPUT");
        assert!(
            rest.contains("it is not a whole safetensors file"),
            "{rest}"
        );
        folder.is_untouched();
    }
}

#[test]
fn a_file_of_another_kind() {
    let folder = Folder::with(&tensors());
    for text in [
        "PK\u{3}\u{4} a zip archive, say",
        "just some text, long enough for a header",
    ] {
        fs::write(folder.input(), text).expect("writable");
        let outcome = folder.attend(&[]);
        let (argument, rest) = outcome.failed(2);
        assert_eq!(argument, "INPUT");
        assert!(
            rest.contains("it is not a whole safetensors file"),
            "{rest}"
        );
        folder.is_untouched();
    }
}

#[test]
fn a_missing_tensor() {
    let without_k: Vec<_> = tensors().into_iter().filter(|t| t.name != "k").collect();
    let rest = "the file has no such tensor, only: q, v; the tensors q, k and v are needed";
    let folder = Folder::with(&without_k);
    let outcome = folder.attend(&[]);
    let (argument, found) = outcome.failed(2);
    // The file keeps no order.
    assert_eq!(
        (argument, found.replace("v, q", "q, v").as_str()),
        ("k", rest)
    );
    folder.is_untouched();
}

#[test]
fn a_rank_other_than_four() {
    let allowed = "rank 4: [batch, seq, heads, dim] in bshd, [batch, heads, seq, dim] in bhsd";
    let rest = format!("its shape is [5, 4, 16], of rank 3; {allowed}");
    refused_tensors(&reshaped("q", &[5, 4, 16]), "q", &rest);
    let rest = format!("its shape is [1, 2, 7, 2, 8], of rank 5; {allowed}");
    refused_tensors(&reshaped("v", &[1, 2, 7, 2, 8]), "v", &rest);
}

#[test]
fn dtypes() {
    let mut mixed = tensors();
    mixed[1] = Tensor::new("k", Dtype::F16, &K);
    refused_tensors(&mixed, "k", "dtype is f16; f32, the dtype of q");
    // A conversion that was asked for does not hide it.
    let folder = Folder::with(&mixed);
    let outcome = folder.attend(&["--dtype", "bf16"]);
    assert_eq!(
        outcome.failed(2),
        ("k", "dtype is f16; f32, the dtype of q")
    );
    let mut integers = tensors();
    integers[2] = Tensor::new("v", Dtype::I32, &V);
    refused_tensors(&integers, "v", "its dtype is I32; F32, F16 or BF16");
}

#[test]
fn head_dims() {
    refused_tensors(
        &reshaped("q", &[2, 5, 4, 257]),
        "q",
        "head_dim is 257; 1 to 256",
    );
    refused_tensors(
        &reshaped("v", &[2, 7, 2, 257]),
        "v",
        "head_dim_v is 257; 1 to 256",
    );
    refused_tensors(
        &reshaped("q", &[2, 5, 4, 0]),
        "q",
        "head_dim is 0; 1 to 256",
    );
    refused_tensors(
        &reshaped("k", &[2, 7, 2, 8]),
        "k",
        "head_dim is 8; 16, the head_dim of q",
    );
}

#[test]
fn batch_seq_and_heads() {
    refused_tensors(
        &reshaped("k", &[3, 7, 2, 16]),
        "k",
        "batch is 3; 2, the batch of q",
    );
    refused_tensors(
        &reshaped("v", &[1, 7, 2, 8]),
        "v",
        "batch is 1; 2, the batch of q",
    );
    refused_tensors(
        &reshaped("v", &[2, 8, 2, 8]),
        "v",
        "seq_kv is 8; 7, the seq_kv of k",
    );
    refused_tensors(
        &reshaped("v", &[2, 7, 1, 8]),
        "v",
        "heads_kv is 1; 2, the heads_kv of k",
    );
    let allowed = "a positive multiple of heads_kv, which is 2";
    let rest = format!("heads_q is 3; {allowed}");
    refused_tensors(&reshaped("q", &[2, 5, 3, 16]), "q", &rest);
    let rest = format!("heads_q is 0; {allowed}");
    refused_tensors(&reshaped("q", &[2, 5, 0, 16]), "q", &rest);
}
