//! XLA's FFI C API, as far as handlers of attention need it: the facts of `xla/ffi/api/c_api.h`, which jaxlib's wheel carries.
//!
//! Every struct begins with its size. XLA adds fields at the end and then counts the minor version up, so what is written for an
//! old version is read by a new one; a field that old versions lack is there if the size says so. Fields behind the last one that
//! is used are left out. The names here are the header's without `XLA_FFI_`.

use std::ffi::{c_char, c_int, c_void};

/// The version that handlers say they are written for: the oldest that XLA still takes, whose fields are all that is used here,
/// except [`Api::device_ordinal_get`].
pub const API_VERSION: (c_int, c_int) = (0, 1);

/// An error, made by [`Api::error_create`] or returned by another function of the API; XLA frees one that a handler returns.
#[repr(C)]
pub struct XlaError {
    _opaque: [u8; 0],
}

/// What belongs to one execution: stream, device, memory.
#[repr(C)]
pub struct ExecutionContext {
    _opaque: [u8; 0],
}

/// How an extension of a struct begins.
#[repr(C)]
pub struct ExtensionBase {
    pub struct_size: usize,
    /// [`METADATA`] or another's number.
    pub kind: c_int,
    pub next: *mut ExtensionBase,
}

/// [`ExtensionBase::kind`] of a [`MetadataExtension`].
pub const METADATA: c_int = 1;

/// A version of the API.
#[repr(C)]
pub struct ApiVersion {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub major: c_int,
    pub minor: c_int,
}

/// What XLA asks of a handler before it uses it.
#[repr(C)]
pub struct Metadata {
    pub struct_size: usize,
    /// Written by the handler: the version that it is written for.
    pub api_version: ApiVersion,
    /// Written by the handler: bits, of which 1 says that calls may be captured into a CUDA graph.
    pub traits: u32,
}

/// The extension of a call that is no call, but asks for a handler's [`Metadata`].
#[repr(C)]
pub struct MetadataExtension {
    pub base: ExtensionBase,
    pub metadata: *mut Metadata,
}

/// Codes of errors.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    InvalidArgument = 3,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

/// Of [`Api::error_create`], which copies the message.
#[repr(C)]
pub struct ErrorCreateArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub message: *const c_char,
    pub code: ErrorCode,
}

/// Element types that attention takes, and what its attributes are, by number. Others are numbers without a name here.
pub mod data_type {
    use std::ffi::c_int;

    pub const PRED: c_int = 1;
    pub const S32: c_int = 4;
    pub const S64: c_int = 5;
    pub const U32: c_int = 8;
    pub const F16: c_int = 10;
    pub const F32: c_int = 11;
    pub const BF16: c_int = 16;
}

/// A dense array.
#[repr(C)]
pub struct Buffer {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    /// One of [`data_type`]'s, or another.
    pub dtype: c_int,
    pub data: *mut c_void,
    pub rank: i64,
    /// `rank` sizes.
    pub dims: *const i64,
}

/// A number among [`Buffers::types`]: a [`Buffer`], of arguments and results alike.
pub const BUFFER: c_int = 1;

/// Arguments, or results, of a call.
#[repr(C)]
pub struct Buffers {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub size: i64,
    pub types: *const c_int,
    pub buffers: *const *const Buffer,
}

/// Characters, without an end mark.
#[repr(C)]
pub struct ByteSpan {
    pub ptr: *const u8,
    pub len: usize,
}

/// A number among [`Attrs::types`]: a [`Scalar`].
pub const SCALAR: c_int = 3;

/// An attribute that is one number.
#[repr(C)]
pub struct Scalar {
    /// One of [`data_type`]'s, or another.
    pub dtype: c_int,
    pub value: *const c_void,
}

/// Attributes of a call, sorted by name.
#[repr(C)]
pub struct Attrs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub size: i64,
    pub types: *const c_int,
    pub names: *const *const ByteSpan,
    pub attrs: *const *const c_void,
}

/// [`CallFrame::stage`] of a call that is to compute.
pub const EXECUTE: c_int = 3;

/// What a handler is called with.
#[repr(C)]
pub struct CallFrame {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub api: *const Api,
    pub ctx: *mut ExecutionContext,
    pub stage: c_int,
    pub args: Buffers,
    pub rets: Buffers,
    pub attrs: Attrs,
}

/// Of [`Api::stream_get`].
#[repr(C)]
pub struct StreamGetArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub ctx: *mut ExecutionContext,
    /// Written: of CUDA a `CUstream`.
    pub stream: *mut c_void,
}

/// Of [`Api::device_memory_allocate`].
#[repr(C)]
pub struct DeviceMemoryAllocateArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub ctx: *mut ExecutionContext,
    pub size: usize,
    pub alignment: usize,
    /// Written.
    pub data: *mut c_void,
}

/// Of [`Api::device_memory_free`].
#[repr(C)]
pub struct DeviceMemoryFreeArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub ctx: *mut ExecutionContext,
    pub size: usize,
    pub data: *mut c_void,
}

/// Of [`Api::device_ordinal_get`].
#[repr(C)]
pub struct DeviceOrdinalGetArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub ctx: *mut ExecutionContext,
    /// Written.
    pub device_ordinal: i32,
}

/// A function of the API, which may be missing. It returns null, or why it failed.
pub type Function<Args> = Option<unsafe extern "C" fn(*mut Args) -> *mut XlaError>;

/// A function that is not used here.
type Unused = *const c_void;

/// XLA's functions. Of an old version only a first part is there: whoever reads a field compares its end with `struct_size`.
#[repr(C)]
pub struct Api {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub api_version: ApiVersion,
    pub internal_api: *const c_void,
    pub error_create: Function<ErrorCreateArgs>,
    pub error_get_message: Unused,
    pub error_destroy: Unused,
    pub handler_register: Unused,
    pub stream_get: Function<StreamGetArgs>,
    pub type_register: Unused,
    pub execution_context_get: Unused,
    pub state_set: Unused,
    pub state_get: Unused,
    pub device_memory_allocate: Function<DeviceMemoryAllocateArgs>,
    pub device_memory_free: Function<DeviceMemoryFreeArgs>,
    pub thread_pool_schedule: Unused,
    pub thread_pool_num_threads: Unused,
    pub future_create: Unused,
    pub future_set_available: Unused,
    pub future_set_error: Unused,
    pub run_id_get: Unused,
    pub device_ordinal_get: Function<DeviceOrdinalGetArgs>,
}

/// Sizes and places as a C compiler computes them from the header, on a machine with addresses of 8 bytes.
#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structs_are_as_the_header_lays_them_out() {
        assert_eq!(size_of::<ExtensionBase>(), 24);
        assert_eq!(size_of::<ApiVersion>(), 24);
        assert_eq!(size_of::<ErrorCreateArgs>(), 32);
        assert_eq!(size_of::<Buffer>(), 48);
        assert_eq!(size_of::<Buffers>(), 40);
        assert_eq!(size_of::<Attrs>(), 48);
        assert_eq!(size_of::<Scalar>(), 16);
        assert_eq!(size_of::<MetadataExtension>(), 32);
        assert_eq!(size_of::<StreamGetArgs>(), 32);
        assert_eq!(size_of::<DeviceMemoryAllocateArgs>(), 48);
        assert_eq!(size_of::<DeviceMemoryFreeArgs>(), 40);
        assert_eq!(size_of::<DeviceOrdinalGetArgs>(), 32);
        assert_eq!(size_of::<Api>(), 192);
    }

    #[test]
    fn fields_are_where_the_header_has_them() {
        assert_eq!(offset_of!(Metadata, traits), 32);
        assert_eq!(offset_of!(CallFrame, stage), 32);
        assert_eq!(offset_of!(CallFrame, args), 40);
        assert_eq!(offset_of!(CallFrame, rets), 80);
        assert_eq!(offset_of!(CallFrame, attrs), 120);
        assert_eq!(size_of::<CallFrame>(), 168);
        assert_eq!(offset_of!(Api, error_create), 48);
        assert_eq!(offset_of!(Api, stream_get), 80);
        assert_eq!(offset_of!(Api, device_memory_allocate), 120);
        assert_eq!(offset_of!(Api, device_memory_free), 128);
        assert_eq!(offset_of!(Api, device_ordinal_get), 184);
    }
}
