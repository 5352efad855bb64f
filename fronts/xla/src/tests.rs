//! A call as XLA makes it, of an API that records what is asked of it.

use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use crate::c_api::*;
use crate::call::{Call, handle};
use crate::failure::Failure;

thread_local! {
    /// Addresses that were given back.
    static FREED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

const STREAM: usize = 0x1230;
const MEMORY: usize = 0x4500;

unsafe extern "C" fn error_create(args: *mut ErrorCreateArgs) -> *mut XlaError {
    // SAFETY: the handler's struct.
    let (code, message) = unsafe { ((*args).code, CStr::from_ptr((*args).message)) };
    let text = format!("{code:?}: {}", message.to_str().unwrap());
    Box::into_raw(Box::new(text)).cast()
}

unsafe extern "C" fn stream_get(args: *mut StreamGetArgs) -> *mut XlaError {
    // SAFETY: the handler's struct.
    unsafe { (*args).stream = ptr::without_provenance_mut(STREAM) };
    ptr::null_mut()
}

unsafe extern "C" fn device_ordinal_get(args: *mut DeviceOrdinalGetArgs) -> *mut XlaError {
    // SAFETY: the handler's struct.
    unsafe { (*args).device_ordinal = 3 };
    ptr::null_mut()
}

unsafe extern "C" fn allocate(args: *mut DeviceMemoryAllocateArgs) -> *mut XlaError {
    // SAFETY: the handler's struct.
    let asked = unsafe { &mut *args };
    if asked.size > 4096 {
        return Box::into_raw(Box::new("XLA's own words".to_owned())).cast();
    }
    assert_eq!(asked.alignment, 128);
    asked.data = ptr::without_provenance_mut(MEMORY);
    ptr::null_mut()
}

unsafe extern "C" fn free(args: *mut DeviceMemoryFreeArgs) -> *mut XlaError {
    // SAFETY: the handler's struct.
    let given = unsafe { &*args };
    FREED.with_borrow_mut(|freed| freed.extend([given.data.addr(), given.size]));
    ptr::null_mut()
}

fn api() -> Api {
    // SAFETY: null pointers, missing functions and numbers.
    let mut api: Api = unsafe { std::mem::zeroed() };
    api.struct_size = size_of::<Api>();
    api.error_create = Some(error_create);
    api.stream_get = Some(stream_get);
    api.device_ordinal_get = Some(device_ordinal_get);
    api.device_memory_allocate = Some(allocate);
    api.device_memory_free = Some(free);
    api
}

fn frame(api: &Api) -> CallFrame {
    // SAFETY: null pointers and numbers.
    let mut frame: CallFrame = unsafe { std::mem::zeroed() };
    frame.struct_size = size_of::<CallFrame>();
    frame.api = api;
    frame.stage = EXECUTE;
    frame.args.struct_size = size_of::<Buffers>();
    frame.rets.struct_size = size_of::<Buffers>();
    frame.attrs.struct_size = size_of::<Attrs>();
    frame
}

/// What `run` makes of a call, or the error that XLA gets.
fn outcome(
    frame: &mut CallFrame,
    run: impl FnOnce(&Call<'_>) -> Result<(), Failure>,
) -> Result<(), String> {
    // SAFETY: a live frame, as XLA's are.
    let error = unsafe { handle(frame, run) };
    match error.is_null() {
        true => Ok(()),
        // SAFETY: all errors here are such strings.
        false => Err(*unsafe { Box::from_raw(error.cast::<String>()) }),
    }
}

#[test]
fn metadata_is_told_and_nothing_runs() {
    let api = api();
    let mut frame = frame(&api);
    // SAFETY: null pointers and numbers.
    let mut metadata: Metadata = unsafe { std::mem::zeroed() };
    metadata.struct_size = size_of::<Metadata>();
    metadata.traits = u32::MAX;
    let mut extension = MetadataExtension {
        base: ExtensionBase {
            struct_size: size_of::<MetadataExtension>(),
            kind: METADATA,
            next: ptr::null_mut(),
        },
        metadata: &mut metadata,
    };
    frame.extension_start = (&raw mut extension).cast();
    // XLA asks without an API.
    frame.api = ptr::null();
    let told = outcome(&mut frame, |_| panic!("it ran"));
    assert_eq!(told, Ok(()));
    let version = (metadata.api_version.major, metadata.api_version.minor);
    assert_eq!((version, metadata.traits), (API_VERSION, 0));
}

#[test]
fn a_panic_ends_as_an_error() {
    let api = api();
    let ended = outcome(&mut frame(&api), |_| panic!("it broke at {}", 7));
    let message = "Internal: ferroflash: it panicked: it broke at 7";
    assert_eq!(ended, Err(message.to_owned()));
}

/// What is wrong with a frame.
type Change<'a> = &'a dyn Fn(&mut CallFrame);

#[test]
fn smaller_structs_and_other_stages_are_refused() {
    let api = api();
    let smaller_frame = |frame: &mut CallFrame| frame.struct_size = 160;
    let smaller_attrs = |frame: &mut CallFrame| frame.attrs.struct_size = 40;
    let other_stage = |frame: &mut CallFrame| frame.stage = 1;
    let changes: [(&str, Change<'_>); 3] = [
        (
            "XLA_FFI_CallFrame of 168 bytes, but one of 160",
            &smaller_frame,
        ),
        ("XLA_FFI_Attrs of 48 bytes, but one of 40", &smaller_attrs),
        ("handler here for stage 1", &other_stage),
    ];
    for (lacks, change) in changes {
        let mut frame = frame(&api);
        change(&mut frame);
        let refused = outcome(&mut frame, |_| panic!("it ran")).unwrap_err();
        assert!(refused.starts_with("Unimplemented: jaxlib: "), "{refused}");
        assert!(refused.contains(lacks), "{refused}");
    }
}

#[test]
fn an_old_api_lacks_its_last_functions() {
    let mut api = api();
    let asked = |call: &Call<'_>| {
        assert_eq!(call.stream()?, STREAM as u64);
        assert_eq!(call.device_ordinal()?, 3);
        Ok(())
    };
    assert_eq!(outcome(&mut frame(&api), asked), Ok(()));
    api.struct_size = offset_of!(Api, device_ordinal_get);
    let lacking = outcome(&mut frame(&api), asked).unwrap_err();
    assert!(
        lacking.contains("no XLA_FFI_DeviceOrdinal_Get"),
        "{lacking}"
    );
}

#[test]
fn scratch_memory_is_given_back_and_xlas_errors_are_handed_on() {
    let api = api();
    let done = outcome(&mut frame(&api), |call| {
        let scratch = call.scratch(100, 128)?;
        assert_eq!(scratch.address, MEMORY as u64);
        FREED.with_borrow(|freed| assert!(freed.is_empty()));
        Ok(())
    });
    assert_eq!(done, Ok(()));
    assert_eq!(FREED.take(), [MEMORY, 100]);
    let too_much = outcome(&mut frame(&api), |call| call.scratch(5000, 128).map(drop));
    assert_eq!(too_much, Err("XLA's own words".to_owned()));
    assert!(FREED.take().is_empty());
}

#[test]
fn arrays_and_attributes_are_found_by_place_and_name() {
    let (api, dims, value) = (api(), [2i64, 7], 0.5f32);
    let mut frame = frame(&api);
    let buffer = Buffer {
        struct_size: size_of::<Buffer>(),
        extension_start: ptr::null_mut(),
        dtype: data_type::BF16,
        data: ptr::without_provenance_mut(0x80),
        rank: 2,
        dims: dims.as_ptr(),
    };
    let (types, buffers): ([c_int; 2], [*const Buffer; 2]) = ([BUFFER; 2], [&buffer; 2]);
    (frame.args.size, frame.args.types, frame.args.buffers) = (2, types.as_ptr(), buffers.as_ptr());
    let scalar = Scalar {
        dtype: data_type::F32,
        value: (&raw const value).cast(),
    };
    let name = ByteSpan {
        ptr: b"scale".as_ptr(),
        len: 5,
    };
    let names: [*const ByteSpan; 1] = [&name];
    let attrs: [*const c_void; 1] = [(&raw const scalar).cast()];
    frame.attrs.size = 1;
    (frame.attrs.types, frame.attrs.names) = ([SCALAR].as_ptr(), names.as_ptr());
    frame.attrs.attrs = attrs.as_ptr();
    let read = outcome(&mut frame, |call| {
        let arguments = call.arguments(&["q", "k"])?;
        let [first, _] = arguments.of(["q", "k"]);
        assert_eq!(
            (first.dtype, first.address, first.dims),
            (16, 0x80, &dims[..])
        );
        assert!(arguments.get("v").is_none());
        assert_eq!(call.attribute::<f32>("scale")?, 0.5);
        call.attribute::<i64>("scale").map(drop)
    });
    let message = "InvalidArgument: scale: it is a number of XLA's type 11; it must be one i64";
    assert_eq!(read, Err(message.to_owned()));
}

#[test]
fn attributes_say_which_arrays_are_there() {
    let (api, values) = (api(), [true, false]);
    let scalars = values.each_ref().map(|value| Scalar {
        dtype: data_type::PRED,
        value: ptr::from_ref(value).cast(),
    });
    let names = ["bias", "mask"].map(|name| ByteSpan {
        ptr: name.as_ptr(),
        len: name.len(),
    });
    let names = names.each_ref().map(ptr::from_ref);
    let attrs = scalars
        .each_ref()
        .map(|scalar| ptr::from_ref(scalar).cast());
    let mut frame = frame(&api);
    frame.attrs.size = 2;
    (frame.attrs.types, frame.attrs.names) = ([SCALAR; 2].as_ptr(), names.as_ptr());
    frame.attrs.attrs = attrs.as_ptr();
    let read = outcome(&mut frame, |call| {
        assert_eq!(call.present(&["mask", "bias"])?, ["bias"]);
        call.present(&["bias", "doc_q"]).map(drop)
    });
    let message = "InvalidArgument: doc_q: it is missing; it must be one bool";
    assert_eq!(read, Err(message.to_owned()));
    let counted = outcome(&mut frame, |call| call.arguments(&["q", "bias"]).map(drop));
    let message = "InvalidArgument: arguments: there are 0; they must be q, bias";
    assert_eq!(counted, Err(message.to_owned()));
}
