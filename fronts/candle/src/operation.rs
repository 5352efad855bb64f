//! The part of an operation of candle that is the same for all of them.

/// In an `impl CustomOp3`: its name, and how it runs on each kind of memory, by its `forward(place, dtypes, operands)` on q, k and v.
macro_rules! on_every_place {
    ($name:literal) => {
        fn name(&self) -> &'static str {
            $name
        }

        fn cpu_fwd(
            &self,
            q: &candle::CpuStorage,
            q_layout: &candle::Layout,
            k: &candle::CpuStorage,
            k_layout: &candle::Layout,
            v: &candle::CpuStorage,
            v_layout: &candle::Layout,
        ) -> candle::Result<(candle::CpuStorage, candle::Shape)> {
            use candle::backend::BackendStorage;
            let dtypes = [q.dtype(), k.dtype(), v.dtype()];
            let operands = [(q, q_layout), (k, k_layout), (v, v_layout)];
            self.forward(&crate::place::OnCpu, dtypes, operands)
        }

        #[cfg(feature = "cuda")]
        fn cuda_fwd(
            &self,
            q: &candle::CudaStorage,
            q_layout: &candle::Layout,
            k: &candle::CudaStorage,
            k_layout: &candle::Layout,
            v: &candle::CudaStorage,
            v_layout: &candle::Layout,
        ) -> candle::Result<(candle::CudaStorage, candle::Shape)> {
            use candle::backend::BackendStorage;
            let place = crate::cuda::OnCuda::new(q.device());
            let dtypes = [q.dtype(), k.dtype(), v.dtype()];
            let operands = [(q, q_layout), (k, k_layout), (v, v_layout)];
            self.forward(&place, dtypes, operands)
        }
    };
}
pub(crate) use on_every_place;
