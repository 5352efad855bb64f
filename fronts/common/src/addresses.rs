use ferroflash::{GradientOperands, ModifierOperands, Operands};

/// The addresses of q, k, v, o and lse, and of arrays: cu_seqlens_q, cu_seqlens_kv, seqused_kv, alibi_slopes, mask, bias, sinks, doc_q,
/// doc_kv, prefix_len and dropout_state. `None` is what a call does not have; and of a mask, a bias and documents it says whether it
/// `has` them, which one without elements is not, wherever it may lie.
pub fn forward_operands(
    of: [Option<u64>; 5],
    arrays: [Option<u64>; 11],
    has: [bool; 3],
) -> Operands {
    let [q, k, v, o, lse] = of;
    let [q, k, v, o] = [q, k, v, o].map(Option::unwrap_or_default);
    #[rustfmt::skip] // as they are named above
    let [
        sums_q, sums_kv, seqused_kv, slopes, mask, bias, sinks, ids_q, ids_kv, prefix, dropout,
    ] = arrays;
    let both = |q: Option<u64>, kv: Option<u64>| q.zip(kv).map(<[u64; 2]>::from);
    let mut of = ModifierOperands::NONE;
    of.mask = mask.filter(|_| has[0]);
    of.bias = bias.filter(|_| has[1]);
    of.documents = both(ids_q, ids_kv).filter(|_| has[2]);
    (of.sinks, of.prefix, of.dropout_state) = (sinks, prefix, dropout);
    Operands::new(q, k, v, o)
        .lse(lse)
        .cu_seqlens(both(sums_q, sums_kv))
        .seqused_kv(seqused_kv)
        .alibi_slopes(slopes)
        .modifiers(of)
}

/// The addresses of d_o, dq, dk, dv, d_lse and the gradients by slopes, a bias and sinks, of which the last three are written if they
/// are `wanted`.
pub fn gradient_operands(of: [Option<u64>; 8], wanted: [bool; 3]) -> GradientOperands {
    let [d_o, dq, dk, dv, d_lse, slopes, bias, sinks] = of;
    let [d_o, dq, dk, dv] = [d_o, dq, dk, dv].map(Option::unwrap_or_default);
    GradientOperands::new(d_o, dq, dk, dv)
        .d_lse(d_lse)
        .d_alibi_slopes(slopes.filter(|_| wanted[0]))
        .d_bias(bias.filter(|_| wanted[1]))
        .d_sinks(sinks.filter(|_| wanted[2]))
}
