//! The functions of libcuda that this workspace and `cust` may call: the only list of them.
//!
//! A name carries the ABI version that the caller was written for (`cuMemAlloc_v2`), so looking up
//! exactly that name is right on every driver: NVIDIA keeps the older ones.

use crate::types::{
    CUlaunchConfig, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOobFill,
    CUtensorMapInterleave, CUtensorMapL2Promotion, CUtensorMapSwizzle,
};
use cust_raw::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUstream,
};
use std::ffi::{c_char, c_int, c_uint, c_void};

driver_symbols! {
    typed {
        /// Initialises the driver. Loads the library first if nobody has, so `cust::init` alone works.
        fn cuInit(flags: c_uint) = crate::fallback::init;
        /// The CUDA version that the driver supports, `1000 * major + 10 * minor`.
        fn cuDriverGetVersion(version: *mut c_int) = crate::fallback::driver_version;
        /// The name of a result code, such as `CUDA_ERROR_INVALID_VALUE`.
        fn cuGetErrorName(code: c_uint, name: *mut *const c_char) = crate::fallback::error_text;
        /// Description of a result code.
        fn cuGetErrorString(code: c_uint, text: *mut *const c_char) = crate::fallback::error_text;

        /// One attribute of a device; `attribute` is a `CUdevice_attribute`.
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice);
        /// Where a device is plugged in, `domain:bus:device.function`, in at most `bytes` bytes with the null at its end.
        fn cuDeviceGetPCIBusId(text: *mut c_char, bytes: c_int, device: CUdevice);
        /// The context current to the calling thread, or null.
        fn cuCtxGetCurrent(context: *mut CUcontext);
        /// Makes a context current, keeping the thread's previous one beneath it.
        fn cuCtxPushCurrent_v2(context: CUcontext);
        /// Takes the current context off the thread's stack.
        fn cuCtxPopCurrent_v2(context: *mut CUcontext);

        /// Loads PTX or cubin, with JIT options given as (`CUjit_option`, value) in two arrays. A value
        /// that fits in a pointer is passed in the pointer's place.
        fn cuModuleLoadDataEx(
            module: *mut CUmodule,
            image: *const c_void,
            option_count: c_uint,
            options: *mut c_uint,
            option_values: *mut *mut c_void,
        );
        /// Unloads a module from the current context.
        fn cuModuleUnload(module: CUmodule);
        /// One attribute of a kernel; `attribute` is a `CUfunction_attribute`.
        fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: CUfunction);
        /// Sets an attribute of a kernel, such as its largest dynamic shared memory.
        fn cuFuncSetAttribute(function: CUfunction, attribute: c_uint, value: c_int);
        /// How many blocks of a kernel fit one multiprocessor at once.
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks: *mut c_int,
            function: CUfunction,
            block_size: c_int,
            dynamic_shared_bytes: usize,
        );
        /// Launches a kernel. `params` points to one pointer per parameter.
        fn cuLaunchKernel(
            function: CUfunction,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared_bytes: c_uint,
            stream: CUstream,
            params: *mut *mut c_void,
            extra: *mut *mut c_void,
        );

        /// Allocates device memory; frees of it synchronise the device.
        fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
        /// Frees what `cuMemAlloc_v2` gave.
        fn cuMemFree_v2(address: CUdeviceptr);
        /// Allocates device memory in stream order (CUDA 11.2).
        fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        /// Frees what `cuMemAllocAsync` gave, in stream order.
        fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
        /// Free and total memory of the current context's device.
        fn cuMemGetInfo_v2(free_bytes: *mut usize, total_bytes: *mut usize);
        /// Copies host memory to the device, in stream order.
        fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
        /// Copies device memory to the host, in stream order.
        fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);

        /// Waits for everything queued on a stream.
        fn cuStreamSynchronize(stream: CUstream);
        /// Creates an event.
        fn cuEventCreate(event: *mut CUevent, flags: c_uint);
        /// Records an event behind what is queued on a stream.
        fn cuEventRecord(event: CUevent, stream: CUstream);
        /// Waits for an event.
        fn cuEventSynchronize(event: CUevent);
        /// Milliseconds between two recorded events.
        fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
        /// Destroys an event.
        fn cuEventDestroy_v2(event: CUevent);

        /// From now on keeps what is queued on a stream in a graph; `mode` is a `CUstreamCaptureMode`.
        fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
        /// Whether work queued on a stream is kept instead of run; `status` is a `CUstreamCaptureStatus`.
        fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);
        /// Ends a capture; the graph is null if it has failed.
        fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
        /// Makes a graph that can be launched.
        fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: u64);
        /// Destroys a graph, not those made of it.
        fn cuGraphDestroy(graph: CUgraph);
        /// Queues all of a graph's work on a stream.
        fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
        /// Destroys a graph that was made to be launched.
        fn cuGraphExecDestroy(executable: CUgraphExec);

        /// Fills the descriptor that TMA reads a tiled tensor by (CUDA 12.0; PTX ISA, "Tensor-map").
        /// The dimension, box and element-stride arrays hold `rank` values, `strides_bytes` one less:
        /// the innermost dimension is contiguous.
        fn cuTensorMapEncodeTiled(
            tensor_map: *mut CUtensorMap,
            dtype: CUtensorMapDataType,
            rank: u32,
            address: *mut c_void,
            dims: *const u64,
            strides_bytes: *const u64,
            box_dims: *const u32,
            element_strides: *const u32,
            interleave: CUtensorMapInterleave,
            swizzle: CUtensorMapSwizzle,
            l2_promotion: CUtensorMapL2Promotion,
            oob_fill: CUtensorMapFloatOobFill,
        );
        /// Launches a kernel with attributes: clusters, programmatic launch (CUDA 11.8).
        fn cuLaunchKernelEx(
            config: *const CUlaunchConfig,
            function: CUfunction,
            params: *mut *mut c_void,
            extra: *mut *mut c_void,
        );
        /// How many clusters of a kernel fit the device at once (CUDA 11.8).
        fn cuOccupancyMaxActiveClusters(
            clusters: *mut c_int,
            function: CUfunction,
            config: *const CUlaunchConfig,
        );
    }
    forwarded {
        cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy
        cuArrayGetDescriptor_v2 cuArrayGetPlane cuArrayGetSparseProperties cuCtxAttach
        cuCtxCreate_v2 cuCtxCreate_v3 cuCtxDestroy_v2 cuCtxDetach cuCtxDisablePeerAccess
        cuCtxEnablePeerAccess cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetDevice
        cuCtxGetExecAffinity cuCtxGetFlags cuCtxGetLimit cuCtxGetSharedMemConfig
        cuCtxGetStreamPriorityRange cuCtxResetPersistingL2Cache cuCtxSetCacheConfig cuCtxSetCurrent
        cuCtxSetLimit cuCtxSetSharedMemConfig cuCtxSynchronize cuDestroyExternalMemory
        cuDestroyExternalSemaphore cuDeviceCanAccessPeer cuDeviceComputeCapability cuDeviceGet
        cuDeviceGetByPCIBusId cuDeviceGetCount cuDeviceGetDefaultMemPool
        cuDeviceGetExecAffinitySupport cuDeviceGetGraphMemAttribute cuDeviceGetLuid
        cuDeviceGetMemPool cuDeviceGetName cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAttribute
        cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetUuid
        cuDeviceGetUuid_v2 cuDeviceGraphMemTrim cuDevicePrimaryCtxGetState
        cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRetain
        cuDevicePrimaryCtxSetFlags_v2 cuDeviceSetGraphMemAttribute cuDeviceSetMemPool
        cuDeviceTotalMem_v2 cuEventQuery cuEventRecordWithFlags cuExternalMemoryGetMappedBuffer
        cuExternalMemoryGetMappedMipmappedArray cuFlushGPUDirectRDMAWrites cuFuncGetModule
        cuFuncSetBlockShape cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuFuncSetSharedSize
        cuGetExportTable cuGetProcAddress cuGraphAddChildGraphNode cuGraphAddDependencies
        cuGraphAddEmptyNode cuGraphAddEventRecordNode cuGraphAddEventWaitNode
        cuGraphAddExternalSemaphoresSignalNode cuGraphAddExternalSemaphoresWaitNode
        cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddMemAllocNode cuGraphAddMemFreeNode
        cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphChildGraphNodeGetGraph cuGraphClone
        cuGraphCreate cuGraphDebugDotPrint cuGraphDestroyNode
        cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent
        cuGraphEventWaitNodeSetEvent cuGraphExecChildGraphNodeSetParams         cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
        cuGraphExecExternalSemaphoresSignalNodeSetParams
        cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecHostNodeSetParams
        cuGraphExecKernelNodeSetParams cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams
        cuGraphExecUpdate cuGraphExternalSemaphoresSignalNodeGetParams
        cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
        cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges cuGraphGetNodes
        cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphHostNodeSetParams
        cuGraphInstantiate_v2 cuGraphKernelNodeCopyAttributes
        cuGraphKernelNodeGetAttribute cuGraphKernelNodeGetParams cuGraphKernelNodeSetAttribute
        cuGraphKernelNodeSetParams cuGraphMemAllocNodeGetParams
        cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams
        cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams cuGraphNodeFindInClone
        cuGraphNodeGetDependencies cuGraphNodeGetDependentNodes cuGraphNodeGetType
        cuGraphReleaseUserObject cuGraphRemoveDependencies cuGraphRetainUserObject cuGraphUpload
        cuGraphicsMapResources cuGraphicsResourceGetMappedMipmappedArray
        cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags_v2
        cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources cuGraphicsUnregisterResource
        cuImportExternalMemory cuImportExternalSemaphore cuIpcCloseMemHandle cuIpcGetEventHandle
        cuIpcGetMemHandle cuIpcOpenEventHandle cuIpcOpenMemHandle_v2 cuLaunch
        cuLaunchCooperativeKernel cuLaunchCooperativeKernelMultiDevice cuLaunchGrid
        cuLaunchGridAsync cuLaunchHostFunc cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete
        cuLinkCreate_v2 cuLinkDestroy cuMemAddressFree cuMemAddressReserve cuMemAdvise
        cuMemAllocFromPoolAsync cuMemAllocHost_v2 cuMemAllocManaged cuMemAllocPitch_v2 cuMemCreate
        cuMemExportToShareableHandle cuMemFreeHost cuMemGetAccess cuMemGetAddressRange_v2
        cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemHostAlloc
        cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuMemHostRegister_v2 cuMemHostUnregister
        cuMemImportFromShareableHandle cuMemMap cuMemMapArrayAsync cuMemPoolCreate cuMemPoolDestroy
        cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMemPoolGetAccess
        cuMemPoolGetAttribute cuMemPoolImportFromShareableHandle cuMemPoolImportPointer
        cuMemPoolSetAccess cuMemPoolSetAttribute cuMemPoolTrimTo cuMemPrefetchAsync
        cuMemRangeGetAttribute cuMemRangeGetAttributes cuMemRelease cuMemRetainAllocationHandle
        cuMemSetAccess cuMemUnmap cuMemcpy cuMemcpy2DAsync_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2
        cuMemcpy3DAsync_v2 cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3D_v2 cuMemcpyAsync
        cuMemcpyAtoA_v2 cuMemcpyAtoD_v2 cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2 cuMemcpyDtoA_v2
        cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoH_v2 cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2
        cuMemcpyHtoD_v2 cuMemcpyPeer cuMemcpyPeerAsync cuMemsetD16Async cuMemsetD16_v2
        cuMemsetD2D16Async cuMemsetD2D16_v2 cuMemsetD2D32Async cuMemsetD2D32_v2 cuMemsetD2D8Async
        cuMemsetD2D8_v2 cuMemsetD32Async cuMemsetD32_v2 cuMemsetD8Async cuMemsetD8_v2
        cuMipmappedArrayCreate cuMipmappedArrayDestroy cuMipmappedArrayGetLevel
        cuMipmappedArrayGetSparseProperties cuModuleGetFunction cuModuleGetGlobal_v2
        cuModuleGetSurfRef cuModuleGetTexRef cuModuleLoad cuModuleLoadData cuModuleLoadFatBinary
        cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags cuParamSetSize
        cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv cuPointerGetAttribute
        cuPointerGetAttributes cuPointerSetAttribute cuProfilerInitialize cuProfilerStart
        cuProfilerStop cuSignalExternalSemaphoresAsync cuStreamAddCallback cuStreamAttachMemAsync
        cuStreamBatchMemOp cuStreamCopyAttributes cuStreamCreate
        cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamGetAttribute
        cuStreamGetCaptureInfo cuStreamGetCaptureInfo_v2 cuStreamGetCtx cuStreamGetFlags
        cuStreamGetPriority cuStreamQuery cuStreamSetAttribute
        cuStreamUpdateCaptureDependencies cuStreamWaitEvent cuStreamWaitValue32 cuStreamWaitValue64
        cuStreamWriteValue32 cuStreamWriteValue64 cuSurfObjectCreate cuSurfObjectDestroy
        cuSurfObjectGetResourceDesc cuSurfRefGetArray cuSurfRefSetArray cuTexObjectCreate
        cuTexObjectDestroy cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc
        cuTexObjectGetTextureDesc cuTexRefCreate cuTexRefDestroy cuTexRefGetAddressMode
        cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor cuTexRefGetFilterMode
        cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode
        cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray
        cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode cuTexRefSetAddress_v2 cuTexRefSetArray
        cuTexRefSetBorderColor cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat
        cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias
        cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray cuThreadExchangeStreamCaptureMode
        cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain cuWaitExternalSemaphoresAsync
    }
}
