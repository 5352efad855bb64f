//! `ferroflash attend` with masks, biases, sinks and dropout.

use ferroflash::{
    Backend, BackwardOptions, BiasTensor, BlockMask, Cpu, Documents, Dropout, ForwardOptions,
    HostTensor, Layout, Mask, MaskTensor, PrefixLengths, Shape, Sinks, backward, forward,
};
use ferroflash_tests::files::{self, Dtype, Tensor, f32s};
use ferroflash_tests::folder::{Folder, K, Q, V};

/// Shape of o and d_o.
const O: [usize; 4] = [2, 5, 4, 8];
const SEQ_KV: usize = K[1];

/// A tensor of the file's shape in bshd.
fn host(tensor: &Tensor) -> HostTensor {
    let &[batch, seq, heads, dim] = tensor.shape.as_slice() else {
        panic!("rank 4");
    };
    let shape = Shape {
        batch,
        heads,
        seq,
        dim,
    };
    HostTensor::from_f32(&f32s(tensor), shape, Layout::Bshd).expect("whole")
}

/// q, k, v and d_o, then every modifier that a file has.
fn every_tensor() -> Vec<Tensor> {
    let shapes = [("q", Q), ("k", K), ("v", V), ("d_o", O)];
    let mut tensors = shapes
        .map(|(name, shape)| Tensor::new(name, Dtype::F32, &shape))
        .to_vec();
    let shown: Vec<u8> = (0..2 * 5 * SEQ_KV)
        .map(|at| u8::from(at % 4 != 1))
        .collect();
    tensors.push(Tensor {
        name: "mask",
        dtype: Dtype::BOOL,
        shape: vec![2, 1, 5, SEQ_KV],
        bytes: shown,
    });
    tensors.push(Tensor::new("bias", Dtype::F32, &[1, 4, 1, SEQ_KV]));
    tensors.push(Tensor::of_f32s("sinks", &[0.5, -1.0, 0.0, 2.0], &[4]));
    tensors.push(Tensor::of_i32s("doc_q", &[0, 0, 1, 1, 1]));
    let of_keys: Vec<i32> = (0..SEQ_KV as i32).map(|key| i32::from(key > 2)).collect();
    tensors.push(Tensor::of_i32s("doc_kv", &of_keys));
    tensors.push(integers("block_counts", &[1, 2, 2], &[1, 1, 3]));
    tensors.push(integers(
        "block_indices",
        &[0, 0, 0, 1, 1, 0],
        &[1, 1, 3, 2],
    ));
    tensors
}

fn integers(name: &'static str, values: &[i32], shape: &[usize]) -> Tensor {
    Tensor {
        shape: shape.to_vec(),
        ..Tensor::of_i32s(name, values)
    }
}

const ARGUMENTS: [&str; 12] = [
    "--mask",
    "causal",
    "--prefix-len",
    "2",
    "--dilation",
    "1",
    "--block-size",
    "2:4",
    "--dropout",
    "0.25",
    "--backward",
    "--bias-gradient",
];

/// The options of [`every_tensor`] and [`ARGUMENTS`], made by the library.
fn options(tensors: &[Tensor]) -> ForwardOptions {
    let find = |name: &str| {
        tensors
            .iter()
            .find(|tensor| tensor.name == name)
            .expect("there")
    };
    let bias = find("bias");
    let shape = Shape {
        batch: 1,
        heads: 4,
        seq: 1,
        dim: SEQ_KV,
    };
    let bias = HostTensor::from_f32(&f32s(bias), shape, Layout::Bhsd).expect("whole");
    let ids: Vec<i32> = (0..SEQ_KV as i32).map(|key| i32::from(key > 2)).collect();
    let blocks = BlockMask::from_lists(&[1, 2, 2], &[0, 0, 0, 1, 1, 0], [1, 1, 3, 2], [2, 4]);
    ForwardOptions::new()
        .mask(Mask::Causal)
        .mask_tensor(MaskTensor::new(&find("mask").bytes, [2, 1, 5, SEQ_KV]).expect("it fits"))
        .bias(BiasTensor::new(&bias).expect("small"))
        .sinks(Sinks::per_head(&[0.5, -1.0, 0.0, 2.0]).expect("finite"))
        .documents(Documents::new(&[0, 0, 1, 1, 1], &ids))
        .block_mask(blocks.expect("in range"))
        .prefix(PrefixLengths::uniform(2))
        .dilation(1)
        .dropout(Dropout::new(0.25, 9).expect("in range"))
}

#[test]
fn a_files_tensors_are_the_librarys_options() {
    let tensors = every_tensor();
    let folder = Folder::with(&tensors);
    let mut cpu = Cpu::new();
    let mut upload = |tensor: &Tensor| host(tensor).upload(cpu.memory()).expect("small");
    let [q, k, v, d_o] = [0, 1, 2, 3].map(|index| upload(&tensors[index]));
    let options = options(&tensors);
    let output = forward(&mut cpu, &q, &k, &v, &options).expect("it runs");
    let backward_options = BackwardOptions::of(&options)
        .sink_gradient(true)
        .bias_gradient(true);
    let gradients =
        backward(&mut cpu, &q, &k, &v, &output, &d_o, &backward_options).expect("it runs");
    let expected = [
        ("o", output.o),
        ("dq", gradients.dq),
        ("dk", gradients.dk),
        ("dv", gradients.dv),
        ("d_sinks", gradients.d_sinks.expect("asked for")),
        ("d_bias", gradients.d_bias.expect("asked for")),
    ];
    let expected = expected.map(|(name, tensor)| {
        let tensor = tensor.download(cpu.memory()).expect("it ran");
        // A bias has its axes in one order, whatever the layout.
        let layout = if name == "d_bias" {
            Layout::Bhsd
        } else {
            Layout::Bshd
        };
        (name, tensor.to_f32(layout))
    });
    for (backend, allowed) in [("cpu", 0.0), ("sim", 3e-6)] {
        let arguments: Vec<_> = ["--backend", backend, "--seed", "9"]
            .into_iter()
            .chain(ARGUMENTS)
            .collect();
        folder.attend(&arguments).succeeded();
        for (name, expected) in &expected {
            let found = f32s(&files::read(&folder.output(), name));
            assert_eq!(found.len(), expected.len(), "{name}");
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
            let off = off.fold(0.0, f32::max);
            assert!(off <= allowed, "{backend} {name}: {off}");
        }
    }
}

#[test]
fn what_a_file_may_not_have_is_named() {
    let with = |tensor: Tensor| {
        let mut tensors = every_tensor();
        tensors.truncate(3);
        tensors.push(tensor);
        Folder::with(&tensors).refused(&[])
    };
    let named = |tensor: Tensor, argument: &str, wrong: &str| {
        let (found, said) = with(tensor);
        assert_eq!(found, argument, "{said}");
        assert!(said.contains(wrong), "{said}");
    };
    named(
        Tensor::new("mask", Dtype::F32, &[1, 1, 5, SEQ_KV]),
        "mask",
        "F32",
    );
    named(
        Tensor::new("mask", Dtype::U8, &[5, SEQ_KV]),
        "mask",
        "rank 2",
    );
    named(
        Tensor::new("mask", Dtype::U8, &[1, 3, 5, SEQ_KV]),
        "mask",
        "heads_q is 3",
    );
    named(
        Tensor::new("bias", Dtype::I32, &[1, 1, 5, SEQ_KV]),
        "bias",
        "I32",
    );
    named(
        Tensor::new("bias", Dtype::F16, &[1, 1, 5, 1]),
        "bias",
        "seq_kv is 1",
    );
    named(
        Tensor::of_f32s("sinks", &[0.0; 3], &[3]),
        "sinks",
        "3 sinks",
    );
    named(
        Tensor::of_f32s("sinks", &[f32::NAN; 4], &[4]),
        "sinks",
        "NaN",
    );
    named(
        Tensor::of_i32s("doc_q", &[0; 5]),
        "doc_kv",
        "no such tensor",
    );
    named(
        integers("block_counts", &[1], &[1, 1, 1]),
        "block_indices",
        "no such tensor",
    );
}

#[test]
fn what_an_argument_may_not_be_is_named() {
    let mut tensors = every_tensor();
    tensors.truncate(3);
    let folder = Folder::with(&tensors);
    for (arguments, argument) in [
        (["--dropout", "1"], "--dropout"),
        (["--dropout", "-0.1"], "--dropout"),
        (["--chunk", "0"], "--chunk"),
        (["--dilation", "0"], "--dilation"),
        (["--prefix-len", "-1"], "--prefix-len"),
        (["--block-size", "0:4"], "--block-size"),
    ] {
        let (found, said) = folder.refused(&arguments);
        assert_eq!(found, argument, "{said}");
    }
}
