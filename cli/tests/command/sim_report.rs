//! `ferroflash sim-report`.

use ferroflash_tests::command::ferroflash;
use serde_json::Value;

const PROBLEM: &str = "sim-report --batch 1 --heads 2 --seq-q 100 --seq-kv 70 --head-dim 64";

#[test]
fn counts_of_every_kernel_family() {
    for (flags, kernel, opcode) in [
        (
            "--dtype f32 --precision ieee",
            "fa_fwd_simt_sm80_f32_hd64",
            "fma.rn.f32",
        ),
        ("--dtype f32", "fa_fwd_mma_sm80_f32_hd64", "mma.sync"),
        (
            "--dtype bf16 --force mma",
            "fa_fwd_mma_sm80_bf16_hd64",
            "mma.sync",
        ),
        (
            "--dtype f16 --force wgmma --mask causal",
            "fa_fwd_wgmma_sm90a_f16_hd64",
            "wgmma.mma_async",
        ),
    ] {
        let outcome = ferroflash(format!("{PROBLEM} {flags} --json").split(' '));
        let reports: Value = serde_json::from_str(outcome.succeeded()).expect("JSON");
        let [report] = reports.as_array().expect("a list").as_slice() else {
            panic!("one launch: {reports}");
        };
        assert_eq!(report["kernel"], kernel);
        let mix = report["mix"].as_object().expect("an object");
        assert!(mix.keys().any(|name| name.starts_with(opcode)), "{mix:?}");
        let lines = report["lines"].as_array().expect("a list");
        let sum = |key: &str| {
            lines
                .iter()
                .filter_map(|line| line[key].as_u64())
                .sum::<u64>()
        };
        assert_eq!(
            sum("lanes"),
            report["thread_instructions"].as_u64().expect("a number")
        );
        let macs = report["tensor_macs"].as_u64().expect("a number");
        assert_eq!(sum("tensor_macs"), macs);
        // Two heads, two products, and 64 components for at least every visible pair.
        let least = 2 * 2 * 70 * 70 / 2 * 64;
        assert_eq!(macs >= least, opcode != "fma.rn.f32", "{macs}");
        assert!(
            lines
                .iter()
                .any(|line| line["sectors_per_request"].as_f64() > Some(0.0))
        );
        assert!(
            lines
                .iter()
                .any(|line| line["conflicts_per_access"].as_f64() == Some(0.0))
        );

        let outcome = ferroflash(format!("{PROBLEM} {flags}").split(' '));
        let text = outcome.succeeded();
        assert!(text.starts_with(kernel), "{text}");
        assert!(text.contains("| conflicts/access |"), "{text}");
    }
}

#[test]
fn what_cannot_be_reported_is_refused() {
    for (arguments, argument) in [
        (format!("{PROBLEM} --backend cuda"), "--backend"),
        (
            "sim-report --batch 1 --heads 1 --head-dim 8 --sweep /nowhere".to_owned(),
            "--sweep",
        ),
        (
            "sim-report --batch 1 --heads 1 --head-dim 8".to_owned(),
            "--seq-q",
        ),
        (
            "sim-report --heads 1 --head-dim 8 --tokens 8".to_owned(),
            "--tokens",
        ),
        (format!("{PROBLEM} --seqs 8"), "--seqs"),
        (format!("{PROBLEM} --peers x.json"), "--peers"),
        (format!("{PROBLEM} --schedule-seed x"), "--schedule-seed"),
        (format!("{PROBLEM} --head-dim 0"), "--head-dim"),
    ] {
        let outcome = ferroflash(arguments.split(' '));
        let (named, rest) = outcome.failed(2);
        assert_eq!(named, argument, "{rest}");
    }
    let help = ferroflash(["sim-report", "--help"]);
    let help = help.succeeded();
    for hidden in [
        "--backend",
        "--pass",
        "--sweep",
        "--seqs",
        "--tokens",
        "--peers",
    ] {
        assert!(!help.contains(hidden), "{hidden}");
    }
}
