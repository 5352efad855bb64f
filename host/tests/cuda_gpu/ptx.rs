//! Hand-written kernels, each a module of its own.

/// `vector_add(u64 a, u64 b, u64 c, u32 n)`: c[i] = a[i] + b[i] over f32.
pub const VECTOR_ADD: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry vector_add(
    .param .u64 a_param, .param .u64 b_param, .param .u64 c_param, .param .u32 n_param)
{
    .reg .pred out_of_range;
    .reg .b32 %r<5>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<8>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r3, %r1, %r2, %r3;
    ld.param.u32 %r4, [n_param];
    setp.ge.u32 out_of_range, %r3, %r4;
    @out_of_range ret;
    ld.param.u64 %rd1, [a_param];
    ld.param.u64 %rd2, [b_param];
    ld.param.u64 %rd3, [c_param];
    mul.wide.u32 %rd4, %r3, 4;
    add.u64 %rd5, %rd1, %rd4;
    add.u64 %rd6, %rd2, %rd4;
    add.u64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
    ret;
}
";

/// `scale({u64 x, u32 n, f32 factor})`, a struct passed by value: x[i] = x[i] * factor.
pub const SCALE: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .align 8 .b8 params[16])
{
    .reg .pred out_of_range;
    .reg .b32 %r<5>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<3>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r3, %r1, %r2, %r3;
    ld.param.u32 %r4, [params+8];
    setp.ge.u32 out_of_range, %r3, %r4;
    @out_of_range ret;
    ld.param.u64 %rd1, [params];
    ld.param.f32 %f1, [params+12];
    mul.wide.u32 %rd2, %r3, 4;
    add.u64 %rd1, %rd1, %rd2;
    ld.global.f32 %f2, [%rd1];
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%rd1], %f3;
    ret;
}
";

/// `reverse(u64 x, u32 n)`: reverses n 32-bit words in one block, through 4n bytes of dynamic shared memory.
pub const REVERSE: &str = r"
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 words[];
.visible .entry reverse(.param .u64 x_param, .param .u32 n_param)
{
    .reg .pred done;
    .reg .b32 %r<9>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [x_param];
    ld.param.u32 %r1, [n_param];
    mov.u32 %r2, %ntid.x;
    mov.u32 %r6, words;
    mov.u32 %r3, %tid.x;
load:
    setp.ge.u32 done, %r3, %r1;
    @done bra loaded;
    mul.wide.u32 %rd2, %r3, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r4, [%rd3];
    mad.lo.u32 %r5, %r3, 4, %r6;
    st.shared.u32 [%r5], %r4;
    add.u32 %r3, %r3, %r2;
    bra load;
loaded:
    bar.sync 0;
    mov.u32 %r3, %tid.x;
store:
    setp.ge.u32 done, %r3, %r1;
    @done bra stored;
    sub.u32 %r7, %r1, %r3;
    sub.u32 %r7, %r7, 1;
    mad.lo.u32 %r8, %r7, 4, %r6;
    ld.shared.u32 %r4, [%r8];
    mul.wide.u32 %rd2, %r3, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r4;
    add.u32 %r3, %r3, %r2;
    bra store;
stored:
    ret;
}
";

/// `cluster_rank(u64 out)`, in clusters of two blocks: out[block] = the block's rank in its cluster.
pub const CLUSTER_RANK: &str = r"
.version 8.0
.target sm_90
.address_size 64
.visible .entry cluster_rank(.param .u64 out_param)
.explicitcluster
.reqnctapercluster 2, 1, 1
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %cluster_ctarank;
    ld.param.u64 %rd1, [out_param];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r2;
    ret;
}
";

/// `wait(u64 nanoseconds)`: spins for that long.
pub const WAIT: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry wait(.param .u64 nanoseconds_param)
{
    .reg .pred early;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [nanoseconds_param];
    mov.u64 %rd2, %globaltimer;
    add.u64 %rd3, %rd2, %rd1;
again:
    mov.u64 %rd4, %globaltimer;
    setp.lt.u64 early, %rd4, %rd3;
    @early bra again;
    ret;
}
";

/// A module with an instruction that there is not.
pub const BAD: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry bad()
{
    bad_instruction.u32 %r1, %r2;
    ret;
}
";
