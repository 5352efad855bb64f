//! Every bad input file is refused by one line that names it, with exit code 2, and leaves no file.

use std::fs;

use ferroflash_tests::files::{Dtype, Tensor};
use ferroflash_tests::folder::{Folder, K, V, packed_tensors, tensors};

/// Asserts that `attend` refuses `tensors`, on `argument`.
#[track_caller]
fn refused_tensors(tensors: &[Tensor], argument: &str, rest: &str) {
    let found = Folder::with(tensors).refused(&[]);
    assert_eq!(found, (argument.to_owned(), rest.to_owned()));
}

/// The default tensors with the shape of one replaced.
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
    let wrong = format!(
        "{}: No such file or directory (os error 2); a safetensors file to read",
        folder.input().display()
    );
    assert_eq!(folder.refused(&[]), ("INPUT".to_owned(), wrong));
}

#[test]
fn not_a_whole_file() {
    let folder = Folder::with(&tensors());
    let bytes = fs::read(folder.input()).expect("readable");
    // Files cut off in the header's length, in the header, and in the data; and files of other formats.
    let cut = [0, 5, 40, bytes.len() - 1].map(|length| &bytes[..length]);
    let other = [
        "PK\u{3}\u{4} a zip archive, say",
        "just some text, long enough for a header",
    ];
    for content in cut.into_iter().chain(other.map(str::as_bytes)) {
        fs::write(folder.input(), content).expect("writable");
        let (argument, rest) = folder.refused(&[]);
        assert_eq!(argument, "INPUT");
        assert!(
            rest.contains("it is not a whole safetensors file"),
            "{rest}"
        );
    }
}

#[test]
fn a_missing_tensor() {
    let without_k: Vec<_> = tensors().into_iter().filter(|t| t.name != "k").collect();
    let rest = "the file has no such tensor, only: q, v; the tensors q, k and v are needed";
    let (argument, found) = Folder::with(&without_k).refused(&[]);
    assert_eq!(argument, "k");
    assert_eq!(found, rest);
}

/// The tensors' names are always listed in the same order, and long ones cut.
#[test]
fn names_are_sorted_and_short() {
    let names = ["g", "b", "f", "e", "a", "d"].map(|name| Tensor::new(name, Dtype::F32, &[1]));
    for _ in 0..4 {
        let (_, rest) = Folder::with(&names).refused(&[]);
        let wrong = "the file has no such tensor, only: a, b, d, e, f, g; ";
        assert!(rest.starts_with(wrong), "{rest}");
    }
    let folder = Folder::with(&[]);
    let named = |name: &str, count: usize, end: usize| {
        let tensor =
            |i| format!(r#""{name}{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,{end}]}}"#);
        let tensors: Vec<_> = (100..100 + count).map(tensor).collect();
        let header = format!("{{{}}}", tensors.join(","));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        fs::write(folder.input(), bytes).expect("writable");
        folder.refused(&[]).1
    };
    let long = "x".repeat(100_000);
    let shown = "x".repeat(40);
    let wrong = format!("the file has no such tensor, only: {shown}…; ");
    assert!(named(&long, 1, 0).starts_with(&wrong));
    // Also in the messages of the header's parser.
    assert!(named(&long, 1, 4).len() < 1000);
    assert!(named("t", 50, 0).contains("t118, t119 and 30 more; "));
}

#[test]
fn a_rank_other_than_four() {
    let allowed = "rank 4: [batch, seq, heads, dim] in bshd, [batch, heads, seq, dim] in bhsd; or rank 3 \
                   beside cu_seqlens_q and cu_seqlens_kv";
    let rest = format!("its shape is [5, 4, 16], of rank 3; {allowed}");
    refused_tensors(&reshaped("q", &[5, 4, 16]), "q", &rest);
    let rest = format!("its shape is [1, 2, 7, 2, 8], of rank 5; {allowed}");
    refused_tensors(&reshaped("v", &[1, 2, 7, 2, 8]), "v", &rest);
}

#[test]
fn dtypes() {
    let mut mixed = tensors();
    mixed[1] = Tensor::new("k", Dtype::F16, &K);
    // A requested conversion does not hide the mismatch.
    for arguments in [&[][..], &["--dtype", "bf16"]] {
        let (argument, rest) = Folder::with(&mixed).refused(arguments);
        assert_eq!(argument, "k");
        assert_eq!(rest, "dtype is f16; it must be f32, the dtype of q");
    }
    let mut integers = tensors();
    integers[2] = Tensor::new("v", Dtype::I32, &V);
    refused_tensors(&integers, "v", "its dtype is I32; F32, F16 or BF16");
}

#[test]
fn head_dims() {
    for (name, shape, rest) in [
        ("q", [2, 5, 4, 257], "head_dim is 257; it must be 1 to 256"),
        (
            "v",
            [2, 7, 2, 257],
            "head_dim_v is 257; it must be 1 to 256",
        ),
        ("q", [2, 5, 4, 0], "head_dim is 0; it must be 1 to 256"),
        (
            "k",
            [2, 7, 2, 8],
            "head_dim is 8; it must be 16, the head_dim of q",
        ),
    ] {
        refused_tensors(&reshaped(name, &shape), name, rest);
    }
}

#[test]
fn batch_seq_and_heads() {
    for (name, shape, rest) in [
        (
            "k",
            [3, 7, 2, 16],
            "batch is 3; it must be 2, the batch of q",
        ),
        (
            "v",
            [1, 7, 2, 8],
            "batch is 1; it must be 2, the batch of q",
        ),
        (
            "v",
            [2, 8, 2, 8],
            "seq_kv is 8; it must be 7, the seq_kv of k",
        ),
        (
            "v",
            [2, 7, 1, 8],
            "heads_kv is 1; it must be 2, the heads_kv of k",
        ),
    ] {
        refused_tensors(&reshaped(name, &shape), name, rest);
    }
    let allowed = "it must be a positive multiple of heads_kv, which is 2";
    let rest = format!("heads_q is 3; {allowed}");
    refused_tensors(&reshaped("q", &[2, 5, 3, 16]), "q", &rest);
    let rest = format!("heads_q is 0; {allowed}");
    refused_tensors(&reshaped("q", &[2, 5, 0, 16]), "q", &rest);
}

/// Packed tensors, one of them replaced.
fn packed_with(tensor: Tensor) -> Vec<Tensor> {
    let mut tensors = packed_tensors();
    tensors.retain(|other| other.name != tensor.name);
    tensors.push(tensor);
    tensors
}

#[test]
fn packed_operands() {
    let rest = "its shape is [1, 5, 4, 16], of rank 4; rank 3 beside cu_seqlens: [total, heads, dim] in bshd, \
                [heads, total, dim] in bhsd";
    let rank_4 = Tensor::new("q", Dtype::F32, &[1, 5, 4, 16]);
    refused_tensors(&packed_with(rank_4), "q", rest);
    let short_v = Tensor::new("v", Dtype::F32, &[6, 2, 8]);
    let rest = "seq_kv is 6; it must be 7, the seq_kv of k";
    refused_tensors(&packed_with(short_v), "v", rest);
}

#[test]
fn cu_seqlens() {
    for (name, sums, rest) in [
        (
            "cu_seqlens_q",
            &[][..],
            "it is empty; batch + 1 elements, the first of them 0",
        ),
        ("cu_seqlens_q", &[1, 2, 5], "its first element is 1; 0"),
        ("cu_seqlens_kv", &[-3, 0, 7], "its first element is -3; 0"),
        (
            "cu_seqlens_kv",
            &[0, 8, 7],
            "element 2 is 7, below 8 before it; elements that do not decrease",
        ),
        (
            "cu_seqlens_q",
            &[0, -1, 5],
            "element 1 is -1, below 0 before it; elements that do not decrease",
        ),
        (
            "cu_seqlens_kv",
            &[0, 3, 4, 7],
            "it has 4 elements; 3, as many as cu_seqlens_q",
        ),
        (
            "cu_seqlens_q",
            &[0, 2, 4],
            "its last element, number 2, is 4; it must be 5, the rows of q",
        ),
        (
            "cu_seqlens_kv",
            &[0, 3, 8],
            "its last element, number 2, is 8; it must be 7, the rows of k",
        ),
        (
            "cu_seqlens_q",
            &[0, 0, 1 << 30],
            "its sequences have 1073741824 rows together; at most 1073741823",
        ),
    ] {
        refused_tensors(&packed_with(Tensor::of_i32s(name, sums)), name, rest);
    }
    let name = "cu_seqlens_kv";
    let wide = Tensor::new(name, Dtype::I64, &[3]);
    refused_tensors(&packed_with(wide), name, "its dtype is I64; I32");
    let square = Tensor::new(name, Dtype::I32, &[3, 1]);
    refused_tensors(
        &packed_with(square),
        name,
        "its shape is [3, 1]; [batch + 1]",
    );

    let mut lonely = packed_tensors();
    lonely.retain(|tensor| tensor.name != name);
    let (argument, rest) = Folder::with(&lonely).refused(&[]);
    assert_eq!(argument, name);
    let allowed = "; both cu_seqlens_q and cu_seqlens_kv, or neither";
    assert!(
        rest.starts_with("the file has no such tensor") && rest.ends_with(allowed),
        "{rest}"
    );
}

#[test]
fn alibi_slopes() {
    let refused = |mut tensors: Vec<Tensor>, slopes: Option<Tensor>, rest: &str| {
        tensors.extend(slopes);
        let (argument, found) = Folder::with(&tensors).refused(&["--alibi"]);
        assert_eq!(argument, "alibi_slopes");
        assert!(found.contains(rest), "{found}");
    };
    let slopes = |values: &[f32], shape: &[usize]| Tensor::of_f32s("alibi_slopes", values, shape);
    refused(tensors(), None, "the file has no such tensor, only: ");
    let wrong = Tensor::new("alibi_slopes", Dtype::F16, &[4]);
    refused(tensors(), Some(wrong), "its dtype is F16; F32");
    for (values, shape, rest) in [
        (
            &[0.5; 3][..],
            &[3][..],
            "it has 3 slopes a batch entry; they must be 4, the heads_q of q",
        ),
        (
            &[0.5; 6],
            &[2, 3],
            "it has 3 slopes a batch entry; they must be 4, the heads_q of q",
        ),
        (
            &[0.5; 12],
            &[3, 4],
            "it has slopes of 3 batch entries; they must be 2, the batch",
        ),
        (
            &[0.5; 8],
            &[2, 4, 1],
            "its shape is [2, 4, 1]; [heads_q] or [batch, heads_q]",
        ),
        (&[], &[2, 0], "0 slopes are no rows of 0; "),
        (
            &[0.5, f32::NAN, 0.5, 0.5],
            &[4],
            "element 1 is NaN; slopes must be finite and below 3.16",
        ),
        (
            &[0.5, 0.5, 0.5, -f32::INFINITY],
            &[4],
            "element 3 is -inf; ",
        ),
        (
            &[1e30; 4],
            &[4],
            "element 0 is 1000000000000000000000000000000; ",
        ),
    ] {
        refused(tensors(), Some(slopes(values, shape)), rest);
        refused(packed_tensors(), Some(slopes(values, shape)), rest);
    }
}
