use std::ffi::c_int;
use std::mem::{offset_of, size_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use crate::c_api::{self, *};
use crate::failure::Failure;

/// A function of XLA's API; `None` if this version of it has none.
macro_rules! function {
    ($api:expr, $name:ident) => {{
        let api: *const Api = $api;
        let end = offset_of!(Api, $name) + size_of::<Function<()>>();
        // SAFETY: XLA gives its API, or null; a field is read if the size says that it is there.
        match !api.is_null() && unsafe { (*api).struct_size } >= end {
            true => unsafe { (*api).$name },
            false => None,
        }
    }};
}

/// Handles one call: answers what XLA asks of the handler, or runs `run` and returns null, or why it failed.
///
/// # Safety
/// `frame` is a frame with which XLA calls a handler.
pub unsafe fn handle(
    frame: *mut CallFrame,
    run: impl FnOnce(&Call<'_>) -> Result<(), Failure>,
) -> *mut XlaError {
    // SAFETY: the API is among the first fields, which every version has.
    let (size, extension, api) =
        unsafe { ((*frame).struct_size, (*frame).extension_start, (*frame).api) };
    // A panic must not leave Rust; nothing that it could leave half-made is used afterwards.
    let ran = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: XLA's extensions are live, as the frame is.
        if unsafe { answer_metadata(extension) } {
            return Ok(());
        }
        check_size("XLA_FFI_CallFrame", size, size_of::<CallFrame>())?;
        // SAFETY: it is of that size, and lives as long as the call.
        run(&Call::new(unsafe { &*frame })?)
    }));
    let ran = ran.unwrap_or_else(|panic| Err(Failure::panicked(&*panic)));
    match ran {
        Ok(()) => ptr::null_mut(),
        Err(failure) => failure.into_xla(function!(api, error_create)),
    }
}

/// Whether XLA asks for the handler's metadata; it is then told.
///
/// # Safety
/// `extension` is null, or a live extension of XLA's.
unsafe fn answer_metadata(extension: *mut ExtensionBase) -> bool {
    if extension.is_null() {
        return false;
    }
    // SAFETY: the caller's promise; an extension of this kind has this struct, whose sizes are looked at before anything is
    // written.
    unsafe {
        if (*extension).kind != METADATA
            || (*extension).struct_size < size_of::<MetadataExtension>()
        {
            return false;
        }
        let metadata = (*extension.cast::<MetadataExtension>()).metadata;
        if metadata.is_null() || (*metadata).struct_size < offset_of!(Metadata, traits) + 4 {
            return false;
        }
        ((*metadata).api_version.major, (*metadata).api_version.minor) = API_VERSION;
        // Not to be captured: a first launch compiles kernels, and a stream's own workspace is not a graph's.
        (*metadata).traits = 0;
    }
    true
}

fn check_size(name: &str, size: usize, needed: usize) -> Result<(), Failure> {
    match size >= needed {
        true => Ok(()),
        false => Err(Failure::lacking(&format!(
            "{name} of {needed} bytes, but one of {size}"
        ))),
    }
}

/// A call that is to compute.
pub struct Call<'a> {
    frame: &'a CallFrame,
}

/// An array of a call.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    /// One of [`data_type`]'s, or another.
    pub dtype: c_int,
    /// Of the call's device; null if it has no elements.
    pub address: u64,
    pub dims: &'a [i64],
}

impl<'a> Call<'a> {
    fn new(frame: &'a CallFrame) -> Result<Self, Failure> {
        check_size("XLA_FFI_Args", frame.args.struct_size, size_of::<Buffers>())?;
        check_size("XLA_FFI_Rets", frame.rets.struct_size, size_of::<Buffers>())?;
        check_size("XLA_FFI_Attrs", frame.attrs.struct_size, size_of::<Attrs>())?;
        match frame.stage {
            EXECUTE => Ok(Self { frame }),
            stage => Err(Failure::lacking(&format!("handler here for stage {stage}"))),
        }
    }

    /// The arguments, which must be as many as there are names.
    pub fn arguments(&self, names: &[&'static str]) -> Result<Named<'a>, Failure> {
        named("arguments", &self.frame.args, names)
    }

    /// The results, which must be as many as there are names.
    pub fn results(&self, names: &[&'static str]) -> Result<Named<'a>, Failure> {
        named("results", &self.frame.rets, names)
    }

    /// Those of `names` whose attribute, a bool of that name, says that they are there.
    pub fn present(&self, names: &[&'static str]) -> Result<Vec<&'static str>, Failure> {
        let mut present = Vec::new();
        for name in names {
            if self.attribute::<bool>(name)? {
                present.push(*name);
            }
        }
        Ok(present)
    }

    /// The attribute of this name, which is one number.
    pub fn attribute<T: Attribute>(&self, name: &str) -> Result<T, Failure> {
        let attrs = &self.frame.attrs;
        let wanted = format!("it must be one {}", T::NAME);
        for index in 0..attrs.size.max(0) as usize {
            // SAFETY: XLA's lists have as many entries as it says, all live during the call; characters lie where a span says,
            // and a scalar is what its type says.
            unsafe {
                let span = &**attrs.names.add(index);
                if slice::from_raw_parts(span.ptr, span.len) != name.as_bytes() {
                    continue;
                }
                let kind = *attrs.types.add(index);
                if kind != SCALAR {
                    let wrong = format!("it is an attribute of XLA's type {kind}");
                    return Err(Failure::argument(name, wrong, wanted));
                }
                let scalar = &*(*attrs.attrs.add(index)).cast::<Scalar>();
                if scalar.dtype != T::DTYPE {
                    let wrong = format!("it is a number of XLA's type {}", scalar.dtype);
                    return Err(Failure::argument(name, wrong, wanted));
                }
                return Ok(T::read(scalar.value.cast()));
            }
        }
        Err(Failure::argument(name, "it is missing", wanted))
    }

    /// The stream that orders the call's work: of CUDA a `CUstream`, as a number.
    pub fn stream(&self) -> Result<u64, Failure> {
        let mut args = StreamGetArgs {
            struct_size: size_of::<StreamGetArgs>(),
            extension_start: ptr::null_mut(),
            ctx: self.frame.ctx,
            stream: ptr::null_mut(),
        };
        let get = function!(self.frame.api, stream_get);
        call("XLA_FFI_Stream_Get", get, &mut args)?;
        Ok(args.stream.expose_provenance() as u64)
    }

    /// The number of the call's device in this process, which is the driver's.
    pub fn device_ordinal(&self) -> Result<i32, Failure> {
        let mut args = DeviceOrdinalGetArgs {
            struct_size: size_of::<DeviceOrdinalGetArgs>(),
            extension_start: ptr::null_mut(),
            ctx: self.frame.ctx,
            device_ordinal: 0,
        };
        let get = function!(self.frame.api, device_ordinal_get);
        call("XLA_FFI_DeviceOrdinal_Get", get, &mut args)?;
        Ok(args.device_ordinal)
    }

    /// Memory of the device, of XLA's allocator, until it is dropped; work that is queued until then may use it.
    pub fn scratch(&self, bytes: usize, alignment: usize) -> Result<Scratch<'a>, Failure> {
        let mut args = DeviceMemoryAllocateArgs {
            struct_size: size_of::<DeviceMemoryAllocateArgs>(),
            extension_start: ptr::null_mut(),
            ctx: self.frame.ctx,
            size: bytes,
            alignment,
            data: ptr::null_mut(),
        };
        let allocate = function!(self.frame.api, device_memory_allocate);
        call("XLA_FFI_DeviceMemory_Allocate", allocate, &mut args)?;
        Ok(Scratch {
            frame: self.frame,
            address: args.data.expose_provenance() as u64,
            args: DeviceMemoryFreeArgs {
                struct_size: size_of::<DeviceMemoryFreeArgs>(),
                extension_start: ptr::null_mut(),
                ctx: self.frame.ctx,
                size: bytes,
                data: args.data,
            },
        })
    }
}

/// Calls a function of XLA's API, which has to be there.
fn call<Args>(name: &str, function: Function<Args>, args: &mut Args) -> Result<(), Failure> {
    let function = function.ok_or_else(|| Failure::lacking(name))?;
    // SAFETY: the function is XLA's, the struct is the one that it asks for, of this execution, and live.
    let error = unsafe { function(args) };
    match error.is_null() {
        true => Ok(()),
        false => Err(Failure::Xlas(error)),
    }
}

/// Arrays of a call, in their order, by name.
pub struct Named<'a>(pub(crate) Vec<(&'static str, Array<'a>)>);

impl<'a> Named<'a> {
    /// The array of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<Array<'a>> {
        let mut arrays = self.0.iter();
        arrays
            .find(|(own, _)| *own == name)
            .map(|(_, array)| *array)
    }

    /// The arrays of these names, which are there.
    pub fn of<const N: usize>(&self, names: [&str; N]) -> [Array<'a>; N] {
        names.map(|name| self.get(name).expect("it was asked for by its name"))
    }
}

/// The arrays of a list of XLA's, which must be as many as there are names.
fn named<'a>(what: &str, list: &'a Buffers, names: &[&'static str]) -> Result<Named<'a>, Failure> {
    let count = usize::try_from(list.size).unwrap_or(0);
    if count != names.len() {
        let allowed = format!("they must be {}", names.join(", "));
        return Err(Failure::argument(
            what,
            format!("there are {count}"),
            allowed,
        ));
    }
    let arrays = names.iter().enumerate();
    let arrays = arrays.map(|(index, name)| Ok((*name, at(list, index, name)?)));
    Ok(Named(arrays.collect::<Result<_, Failure>>()?))
}

/// Array `index` of a list that has as many.
fn at<'a>(list: &'a Buffers, index: usize, name: &str) -> Result<Array<'a>, Failure> {
    // SAFETY: XLA's lists have as many entries as it says, live during the call, of the types that it says; a buffer's fields
    // are read if its size says that they are there, and it has as many sizes as axes.
    unsafe {
        if *list.types.add(index) != BUFFER {
            let kind = *list.types.add(index);
            let wrong = format!("it is of XLA's type {kind}");
            return Err(Failure::argument(name, wrong, "it must be an array"));
        }
        let buffer = *list.buffers.add(index);
        check_size(
            "XLA_FFI_Buffer",
            (*buffer).struct_size,
            size_of::<c_api::Buffer>(),
        )?;
        let buffer = &*buffer;
        let dims: &[i64] = match buffer.rank {
            // A number has no sizes, and maybe no list of them.
            ..=0 => &[],
            rank => slice::from_raw_parts(buffer.dims, rank as usize),
        };
        Ok(Array {
            dtype: buffer.dtype,
            address: buffer.data.expose_provenance() as u64,
            dims,
        })
    }
}

/// A type of attributes.
pub trait Attribute {
    const NAME: &str;
    const DTYPE: c_int;

    /// # Safety
    /// A value of this type lies there.
    unsafe fn read(value: *const u8) -> Self;
}

impl Attribute for f32 {
    const NAME: &str = "f32";
    const DTYPE: c_int = data_type::F32;

    unsafe fn read(value: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { value.cast::<Self>().read_unaligned() }
    }
}

impl Attribute for i64 {
    const NAME: &str = "i64";
    const DTYPE: c_int = data_type::S64;

    unsafe fn read(value: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { value.cast::<Self>().read_unaligned() }
    }
}

impl Attribute for bool {
    const NAME: &str = "bool";
    const DTYPE: c_int = data_type::PRED;

    unsafe fn read(value: *const u8) -> Self {
        // SAFETY: the caller's promise, for a byte; any but 0 is true.
        unsafe { value.read() != 0 }
    }
}

/// Memory of [`Call::scratch`], given back when it is dropped.
pub struct Scratch<'a> {
    frame: &'a CallFrame,
    pub address: u64,
    args: DeviceMemoryFreeArgs,
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // What is queued in the stream keeps the memory: XLA's allocators hand it on in the stream's order. There is nobody to
        // tell of a failure, and memory that stays is no harm to the results.
        let free = function!(self.frame.api, device_memory_free);
        let _ = call("XLA_FFI_DeviceMemory_Free", free, &mut self.args);
    }
}
