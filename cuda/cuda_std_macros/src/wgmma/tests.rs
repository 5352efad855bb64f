//! Runs what the generator writes, in every form, and compares with a plain matrix product.

use proc_macro2::TokenStream as Tokens;
use ptx_sim::{LaunchConfig, Memory, Module, launch};

use super::form::{A_ROWS, Form, Major, OperandA};
use super::text::Gemm;

/// Threads of a warpgroup.
const THREADS: usize = 128;
/// Width of an atom column in elements, and bytes of its rows.
const ATOM_COLS: usize = 64;
const LINE_BYTES: usize = 128;
/// The accumulator's content before the multiplication.
const BEFORE: f32 = 1000.0;

/// Element (`mn`, `k`) of each operand: small integers, so that every sum is exact, and no two rows are equal.
fn a_element(m: usize, k: usize) -> f32 {
    ((3 * m + 5 * k + m * k) % 7) as f32 - 3.0
}

fn b_element(n: usize, k: usize) -> f32 {
    ((2 * n + 11 * k + n * k) % 5) as f32 - 2.0
}

/// A small integer in 16 bits.
fn encode(ptx_type: &str, value: f32) -> u16 {
    let bits = value.to_bits();
    if ptx_type == "bf16" {
        return (bits >> 16) as u16;
    }
    if value == 0.0 {
        return 0;
    }
    let exponent = (bits >> 23 & 0xff) as u16 + 15 - 127;
    (bits >> 31 << 15) as u16 | exponent << 10 | (bits >> 13 & 0x3ff) as u16
}

/// An operand's image in shared memory: atom columns of 64 elements with the 128-byte swizzle.
struct Image {
    bytes: Vec<u8>,
    /// Where the operand begins.
    begin: usize,
    atom_column_bytes: usize,
}

impl Image {
    fn new(
        major: Major,
        ptx_type: &str,
        (extent, depth): (usize, usize),
        element: fn(usize, usize) -> f32,
    ) -> Self {
        // A part of a taller atom column is its last rows.
        let (atom_column_rows, atom_columns, first_row) = match major {
            Major::K { atom_column_rows } => {
                let rows = atom_column_rows.unwrap_or(extent);
                (rows, depth.div_ceil(ATOM_COLS), rows - extent)
            }
            Major::Mn => (depth, extent.div_ceil(ATOM_COLS), 0),
        };
        let atom_column_bytes = atom_column_rows * LINE_BYTES;
        let mut bytes = vec![0; atom_columns * atom_column_bytes];
        for mn in 0..extent {
            for k in 0..depth {
                let (row, column) = match major {
                    Major::K { .. } => (first_row + mn, k),
                    Major::Mn => (k, mn),
                };
                let offset = column / ATOM_COLS * atom_column_bytes
                    + row * LINE_BYTES
                    + column % ATOM_COLS * 2;
                let swizzled = offset ^ (offset / LINE_BYTES % 8) << 4;
                let value = encode(ptx_type, element(mn, k)).to_le_bytes();
                bytes[swizzled..swizzled + 2].copy_from_slice(&value);
            }
        }
        Self {
            bytes,
            begin: first_row * LINE_BYTES,
            atom_column_bytes,
        }
    }

    /// The descriptor of the operand, in an image at shared address `address` (PTX ISA, "Matrix Descriptor Format").
    fn descriptor(&self, major: Major, address: usize) -> u64 {
        let leading = match major {
            Major::K { .. } => 16,
            Major::Mn => self.atom_column_bytes,
        };
        let field = |bytes: usize| (bytes >> 4) as u64;
        field(address + self.begin) | field(leading) << 16 | field(8 * LINE_BYTES) << 32 | 1 << 62
    }
}

/// `text` of an `asm!` with its operands in place: numbers are the accumulator and then A.
fn filled(text: &str, accumulators: usize) -> String {
    let mut ptx = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        ptx += &rest[..at];
        let (brace, after) = (&rest[at..=at], &rest[at + 1..]);
        if let Some(after) = after.strip_prefix(brace) {
            ptx += brace;
            rest = after;
            continue;
        }
        let (name, after) = after.split_once('}').expect("an operand is closed");
        ptx += &match name.parse::<usize>() {
            Ok(number) if number < accumulators => format!("%d{number}"),
            Ok(number) => format!("%a{}", number - accumulators),
            Err(_) => format!("%{name}"),
        };
        rest = after;
    }
    ptx + rest
}

/// A kernel that copies the images of A and B to shared memory, multiplies once and stores every thread's accumulator.
fn kernel(
    gemm: &Gemm,
    text: &str,
    a_bytes: usize,
    b_bytes: usize,
    descriptors: [u64; 2],
) -> String {
    let (acc, a_registers) = (gemm.accumulators(), gemm.a_registers());
    let copy = |pointer: &str, bytes: usize, to: usize| {
        format!(
            "mov.u32 %at, %thread;\nCOPY{to}:\nmul.wide.u32 %offset, %at, 4;\nadd.s64 %from, {pointer}, %offset;\n\
             ld.global.b32 %word, [%from];\nmad.lo.u32 %to, %at, 4, {to};\nadd.u32 %to, %to, %base;\n\
             st.shared.b32 [%to], %word;\nadd.u32 %at, %at, {THREADS};\nsetp.lt.u32 %more, %at, {};\n\
             @%more bra COPY{to};\n",
            bytes / 4
        )
    };
    let (mut load_a, mut copy_a) = (String::new(), String::new());
    match gemm.form.a {
        OperandA::Shared(_) => copy_a = copy("%a_gmem", a_bytes, b_bytes),
        OperandA::Registers => {
            for register in 0..a_registers {
                load_a += &format!("ld.global.b32 %a{register}, [%from+{}];\n", 4 * register);
            }
        }
    }
    let set: String = (0..acc)
        .map(|i| format!("mov.f32 %d{i}, 0f{:08X};\n", BEFORE.to_bits()))
        .collect();
    let store: String = (0..acc)
        .map(|i| format!("st.global.f32 [%from+{}], %d{i};\n", 4 * i))
        .collect();
    let [a, b] = descriptors;
    format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n\
         .visible .entry k(.param .u64 a_ptr, .param .u64 b_ptr, .param .u64 d_ptr)\n{{\n\
         .reg .pred %more; .reg .b32 %thread, %at, %to, %word, %base; .reg .f32 %d<{acc}>;\n\
         .reg .b32 %a<{a_registers}>; .reg .b64 %a_gmem, %b_gmem, %d_gmem, %offset, %from, %a, %b, %base64;\n\
         ld.param.u64 %a_gmem, [a_ptr]; ld.param.u64 %b_gmem, [b_ptr]; ld.param.u64 %d_gmem, [d_ptr];\n\
         mov.u32 %thread, %tid.x;\nmov.u32 %base, smem;\n{copy_b}{copy_a}\
         fence.proxy.async.shared::cta;\nbar.sync 0;\n\
         mul.wide.u32 %offset, %thread, {a_row};\nadd.s64 %from, %a_gmem, %offset;\n{load_a}\
         and.b32 %base, %base, 0x3ffff;\nshr.u32 %base, %base, 4;\ncvt.u64.u32 %base64, %base;\n\
         add.s64 %a, %base64, {a};\nadd.s64 %b, %base64, {b};\n{set}{text}\n\
         wgmma.wait_group.sync.aligned 0;\n\
         mul.wide.u32 %offset, %thread, {d_row};\nadd.s64 %from, %d_gmem, %offset;\n{store}ret;\n}}\n",
        copy_b = copy("%b_gmem", b_bytes, 0),
        a_row = 4 * a_registers,
        d_row = 4 * acc,
        text = filled(text, acc),
    )
}

/// The bytes of A in each thread's registers, by the fragment map in `cuda_std::wgmma`.
fn a_fragments(gemm: &Gemm) -> Vec<u8> {
    let mut bytes = Vec::new();
    for thread in 0..THREADS {
        let (warp, quad, pair) = (thread / 32, thread % 32 / 4, thread % 4 * 2);
        for register in 0..gemm.a_registers() {
            let (step, r) = (register / 4, register % 4);
            for half in 0..2 {
                let row = 16 * warp + quad + 8 * (r % 2);
                let column = 16 * step + 8 * (r / 2) + pair + half;
                bytes.extend(encode(gemm.ptx_type, a_element(row, column)).to_le_bytes());
            }
        }
    }
    bytes
}

/// Runs the text that overwrites the accumulator, or that `accumulates`, and compares every thread's.
fn check(gemm: &Gemm, accumulates: bool) {
    let Gemm {
        form,
        n,
        k,
        ptx_type,
    } = *gemm;
    let b = Image::new(form.b, ptx_type, (n, k), b_element);
    let b_descriptor = b.descriptor(form.b, 0);
    let (a_bytes, a_descriptor) = match form.a {
        OperandA::Registers => (a_fragments(gemm), 0),
        OperandA::Shared(major) => {
            let a = Image::new(major, ptx_type, (A_ROWS, k), a_element);
            let descriptor = a.descriptor(major, b.bytes.len());
            (a.bytes, descriptor)
        }
    };
    let ptx = kernel(
        gemm,
        &gemm.text(accumulates),
        a_bytes.len(),
        b.bytes.len(),
        [a_descriptor, b_descriptor],
    );
    let what = format!("{form:?}, n {n}, k {k}, {ptx_type}, accumulates {accumulates}");
    let module = Module::parse(&ptx).unwrap_or_else(|error| panic!("{what}: {error}"));
    let memory = Memory::new();
    let upload = |bytes: &[u8]| {
        let address = memory.alloc(bytes.len() as u64).unwrap();
        memory.write(address, bytes).unwrap();
        address.to_le_bytes()
    };
    let acc = gemm.accumulators();
    let d = memory.alloc((THREADS * acc * 4) as u64).unwrap();
    let shared_bytes = (a_bytes.len() + b.bytes.len()) as u32;
    let config = LaunchConfig::new([1; 3], [THREADS as u32, 1, 1]).shared_bytes(shared_bytes);
    let (a_ptr, b_ptr) = (upload(&a_bytes), upload(&b.bytes));
    let arguments: [&[u8]; 3] = [&a_ptr, &b_ptr, &d.to_le_bytes()];
    launch(&module, "k", &config, &arguments, &memory)
        .unwrap_or_else(|error| panic!("{what}: {error}"));

    let mut bytes = vec![0; THREADS * acc * 4];
    memory.read(d, &mut bytes).unwrap();
    for (i, word) in bytes.chunks_exact(4).enumerate() {
        let (thread, register) = (i / acc, i % acc);
        let (warp, quad, pair) = (thread / 32, thread % 32 / 4, thread % 4 * 2);
        let row = 16 * warp + quad + 8 * (register / 2 % 2);
        let column = 8 * (register / 4) + pair + register % 2;
        let product: f32 = (0..k)
            .map(|k| a_element(row, k) * b_element(column, k))
            .sum();
        let expected = product + if accumulates { BEFORE } else { 0.0 };
        let got = f32::from_le_bytes(word.try_into().unwrap());
        assert_eq!(got, expected, "{what}: row {row}, column {column}");
    }
}

const K: Major = Major::K {
    atom_column_rows: None,
};
const K_OF_256: Major = Major::K {
    atom_column_rows: Some(256),
};

/// Every form; of A at most 64 rows, so that atom columns of 128 rows are a part's.
fn forms() -> impl Iterator<Item = Form> {
    let k_of_128 = Major::K {
        atom_column_rows: Some(128),
    };
    let of_a = [
        OperandA::Registers,
        OperandA::Shared(K),
        OperandA::Shared(k_of_128),
        OperandA::Shared(Major::Mn),
    ];
    of_a.into_iter()
        .flat_map(|a| [K, K_OF_256, Major::Mn].map(|b| Form { a, b }))
}

/// Among them the shapes that backward needs, with 64 and 80 queries a tile.
#[test]
fn every_form_multiplies() {
    for form in forms() {
        for (n, k) in [(8, 16), (64, 128), (80, 64), (128, 80), (256, 64)] {
            for ptx_type in ["bf16", "f16"] {
                let gemm = Gemm {
                    form,
                    n,
                    k,
                    ptx_type,
                };
                for accumulates in [false, true] {
                    check(&gemm, accumulates);
                }
            }
        }
    }
}

fn expanded(list: &str) -> syn::Result<Tokens> {
    syn::parse_str(list).map(|families| super::expand(&families))
}

#[test]
fn every_form_is_written_and_expands_to_items() {
    let list = "rs(k): (64, 64); rs(k of 256): (64, 64); rs(mn): (64, 64), (128, 64);
                ss(k, k): (64, 64); ss(k of 128, mn): (64, 64); ss(mn, mn): (80, 64); ss(mn, k): (64, 64);";
    let code = expanded(list).unwrap();
    let file: syn::File = syn::parse2(code).unwrap();
    // Two element types of eight GEMMs, and accumulators of three sizes.
    assert_eq!(file.items.len(), 2 * 8 + 3);
}

#[test]
fn faults_of_the_list_are_named() {
    for (list, fault) in [
        ("sr(k): (64, 64);", "a form is `rs` or `ss`"),
        ("rs(m): (64, 64);", "an operand is `k` or `mn`"),
        ("rs(k, k): (64, 64);", "`rs` names one operand, `ss` two"),
        ("ss(k from 128, k): (64, 64);", "expected `k of ROWS`"),
        ("rs(k): (60, 64);", "n is a multiple of 8 up to 256"),
        ("rs(k): (64, 72);", "k is a multiple of 16"),
    ] {
        assert_eq!(expanded(list).unwrap_err().to_string(), fault, "{list}");
    }
}
