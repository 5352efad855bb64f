//! A parsed PTX module.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crate::analysis::{self, Divergence};
use crate::decode;
use crate::error::{MemoryError, ParseError, SimError, SourceLines};
use crate::ir::{Kernel, Op, Parameter, Pred};
use crate::memory::Memory;
use crate::ptx::ast::{Init, VarSpace};
use crate::ptx::parse;

/// Most bytes of one module-scope variable.
const MAX_VARIABLE_BYTES: u64 = 1 << 28;

/// A module-scope `.global` or `.const` variable.
#[derive(Clone, Debug)]
struct Variable {
    name: String,
    bytes: u64,
    elem_bytes: u64,
    init: Vec<InitValue>,
    /// Declared `.extern`: it has no storage here.
    external: bool,
}

#[derive(Clone, Debug)]
enum InitValue {
    Bits(u64),
    Address(usize, i64),
}

/// A PTX module: kernels decoded and ready to launch.
///
/// ```
/// let ptx = r#"
///     .version 7.0
///     .target sm_80
///     .address_size 64
///     .visible .entry noop() { ret; }
/// "#;
/// let module = ptx_sim::Module::parse(ptx)?;
/// assert_eq!(module.kernels().next().map(|k| k.name()), Some("noop"));
/// # Ok::<(), ptx_sim::ParseError>(())
/// ```
#[derive(Debug)]
pub struct Module {
    source: Arc<str>,
    target: String,
    kernels: Vec<Kernel>,
    /// The same as they are run, each made when it is first launched.
    packed: Vec<OnceLock<Kernel>>,
    variables: Vec<Variable>,
    /// Names this module in a [`Memory`].
    id: u64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl Module {
    /// Parses and decodes PTX text.
    ///
    /// An instruction, modifier or operand form that is not known exactly is accepted here and is a
    /// fault when a thread executes it; [`KernelInfo::unsupported`] lists them beforehand.
    ///
    /// # Errors
    /// [`ParseError`] with the line where the text is not PTX.
    pub fn parse(ptx: &str) -> Result<Self, ParseError> {
        Self::parse_inner(ptx).map_err(|e| e.with_source(ptx))
    }

    fn parse_inner(ptx: &str) -> Result<Self, ParseError> {
        let ast = parse(ptx)?;
        let globals: Vec<_> = ast
            .variables
            .iter()
            .filter(|v| matches!(v.space, VarSpace::Global | VarSpace::Const))
            .collect();
        let mut variables = Vec::new();
        for var in &globals {
            if var.bytes() > MAX_VARIABLE_BYTES {
                return Err(ParseError::new(
                    var.line,
                    format!(
                        "`{}` has {} bytes; at most {MAX_VARIABLE_BYTES}",
                        var.name,
                        var.bytes()
                    ),
                ));
            }
            let init = var
                .init
                .iter()
                .map(|value| match *value {
                    Init::Bits(bits) => Ok(InitValue::Bits(bits)),
                    Init::Address(name, offset) => globals
                        .iter()
                        .position(|v| v.name == name)
                        .map(|i| InitValue::Address(i, offset))
                        .ok_or_else(|| {
                            ParseError::new(var.line, format!("unknown variable `{name}`"))
                        }),
                })
                .collect::<Result<_, _>>()?;
            variables.push(Variable {
                name: var.name.to_owned(),
                bytes: var.bytes(),
                elem_bytes: var.ty.bytes(),
                init,
                external: var.external,
            });
        }
        let kernels = decode::kernels(&ast)?;
        Ok(Self {
            source: ptx.into(),
            target: ast.target.to_owned(),
            packed: vec![OnceLock::new(); kernels.len()],
            kernels,
            variables,
            id: NEXT_ID.fetch_add(1, Relaxed),
        })
    }

    /// The `.target` of the module, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The kernels, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = KernelInfo<'_>> {
        self.kernels.iter().map(|kernel| KernelInfo {
            kernel,
            source: &self.source,
        })
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// The kernel `name`, ready to run.
    pub(crate) fn kernel(&self, name: &str) -> Result<&Kernel, SimError> {
        let index = self.kernels.iter().position(|k| k.name == name);
        let index = index.ok_or_else(|| {
            let names: Vec<_> = self
                .kernels
                .iter()
                .map(|k| format!("`{}`", k.name))
                .collect();
            SimError::NoSuchKernel {
                name: name.to_owned(),
                known: if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                },
            }
        })?;
        Ok(self.packed[index].get_or_init(|| self.kernels[index].packed()))
    }

    /// Places the module's variables in `memory` on the first launch; returns their addresses.
    pub(crate) fn load(&self, memory: &Memory) -> Result<Arc<[u64]>, MemoryError> {
        memory.module(self.id, || {
            let addresses = self
                .variables
                .iter()
                .map(|v| memory.alloc(if v.external { 0 } else { v.bytes }))
                .collect::<Result<Vec<_>, _>>()?;
            for (variable, &address) in self.variables.iter().zip(&addresses) {
                if variable.external {
                    continue;
                }
                // Without an initialiser a variable is zero (PTX ISA §5.4.4).
                let mut bytes = zeroed(variable.bytes)?;
                let size = variable.elem_bytes as usize;
                for (value, out) in variable.init.iter().zip(bytes.chunks_mut(size)) {
                    let bits = match *value {
                        InitValue::Bits(bits) => bits,
                        InitValue::Address(i, offset) => addresses[i].wrapping_add(offset as u64),
                    };
                    let n = out.len().min(8);
                    out[..n].copy_from_slice(&bits.to_le_bytes()[..n]);
                }
                memory.write(address, &bytes)?;
            }
            Ok(addresses)
        })
    }

    /// Address in `memory` of a module-scope variable, once a kernel of the module was launched or
    /// this was called.
    ///
    /// # Errors
    /// [`MemoryError`] if the variables do not fit.
    pub fn variable(&self, memory: &Memory, name: &str) -> Result<Option<u64>, MemoryError> {
        let addresses = self.load(memory)?;
        let index = self.variables.iter().position(|v| v.name == name);
        Ok(index.map(|i| addresses[i]))
    }
}

/// `bytes` zero bytes on the host.
fn zeroed(bytes: u64) -> Result<Vec<u8>, MemoryError> {
    let mut zeros = Vec::new();
    let reserved = zeros.try_reserve_exact(bytes as usize);
    reserved.map_err(|_| MemoryError::OutOfMemory { bytes })?;
    zeros.resize(bytes as usize, 0);
    Ok(zeros)
}

/// An instruction of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction<'m> {
    /// 1-based line of the PTX text.
    pub line: u32,
    /// The dotted opcode, as written.
    pub opcode: &'m str,
    /// Whether a predicate decides which threads execute it.
    pub is_guarded: bool,
}

/// Properties of a kernel that a launcher needs.
#[derive(Clone, Copy, Debug)]
pub struct KernelInfo<'m> {
    kernel: &'m Kernel,
    source: &'m str,
}

impl<'m> KernelInfo<'m> {
    /// Entry name.
    pub fn name(&self) -> &'m str {
        &self.kernel.name
    }

    /// Parameters, in order.
    pub fn parameters(&self) -> &'m [Parameter] {
        &self.kernel.params
    }

    /// `.maxntid`.
    pub fn maxntid(&self) -> Option<[u32; 3]> {
        self.kernel.directives.maxntid
    }

    /// `.reqntid`.
    pub fn reqntid(&self) -> Option<[u32; 3]> {
        self.kernel.directives.reqntid
    }

    /// `.minnctapersm`.
    pub fn minnctapersm(&self) -> Option<u32> {
        self.kernel.directives.minnctapersm
    }

    /// `.reqnctapercluster`.
    pub fn cluster(&self) -> Option<[u32; 3]> {
        self.kernel.directives.reqnctapercluster
    }

    /// Bytes of shared memory the kernel declares itself.
    pub fn static_shared_bytes(&self) -> u32 {
        self.kernel.static_shared_bytes
    }

    /// Number of instructions after inlining calls.
    pub fn instructions(&self) -> usize {
        self.kernel.code.len()
    }

    /// The instructions after inlining calls, in order; the last is the return that every body ends with, written or not.
    pub fn code(&self) -> impl Iterator<Item = Instruction<'m>> {
        let kernel = self.kernel;
        let opcodes = (0..).map(|pc| kernel.opcode(pc));
        let code = kernel.code.iter().zip(opcodes);
        code.map(|(inst, opcode)| Instruction {
            line: inst.line,
            opcode,
            is_guarded: inst.guard != Pred::TRUE,
        })
    }

    /// Barriers and warp-wide instructions that a branch guards about which the threads that must reach them together
    /// may disagree, as far as can be told without running the kernel.
    pub fn divergences(&self) -> Vec<Divergence> {
        analysis::divergences(self.kernel, self.source)
    }

    /// Instructions the simulator does not know: line, text, reason.
    pub fn unsupported(&self) -> Vec<(u32, String, String)> {
        let source = SourceLines::new(self.source);
        self.kernel
            .code
            .iter()
            .filter_map(|inst| match &inst.op {
                Op::Unsupported(what) => {
                    Some((inst.line, source.quote(inst.line), what.to_string()))
                }
                _ => None,
            })
            .collect()
    }
}
