//! The commands that explain: roofline, ladder, layout.

use std::fs;
use std::io::{Write, stderr};
use std::process::Command;

use ferroflash_insight::gpu_spec::GpuSpec;
use ferroflash_insight::ladder::gpu::{Size, climb};
use ferroflash_insight::probe::{self, Effort};
use ferroflash_tests::command::{ferroflash_in, run};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::paths;
use serde_json::Value;
use tempfile::TempDir;

fn json(text: &str) -> Value {
    serde_json::from_str(run(text).succeeded()).expect("a line of JSON")
}

/// The published figures for S = Q Kᵀ on an A100-40G, whose ridge is at 201 FLOP/byte.
#[test]
fn roofline_gives_the_known_intensities() {
    let report =
        json("roofline --device a100-40g --seq 256,2048,4096 --head-dim 64,128,256 --json");
    assert_eq!(report["ridge"].as_f64().unwrap().round(), 201.0);
    let rows = report["rows"].as_array().unwrap();
    let found: Vec<_> = rows
        .iter()
        .filter(|row| row["algorithm"] == "scores" && row["pass"] == "forward")
        .map(|row| {
            let intensity = row["intensity"].as_f64().unwrap().round();
            (
                row["head_dim"].as_u64().unwrap(),
                intensity,
                row["bound"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        (64, 43.0, "memory"),
        (64, 60.0, "memory"),
        (64, 62.0, "memory"),
        (128, 64.0, "memory"),
        (128, 114.0, "memory"),
        (128, 120.0, "memory"),
        (256, 85.0, "memory"),
        (256, 205.0, "compute"),
        (256, 228.0, "compute"),
    ];
    assert_eq!(found, expected);
    // Five algorithms and two passes for each of the nine shapes.
    assert_eq!(rows.len(), 9 * 2 * 5);
}

#[test]
fn roofline_prints_what_json_holds() {
    let text = run("roofline --device h200 --seq 2048 --head-dim 64 --dtype f16");
    let text = text.succeeded();
    assert!(
        text.starts_with("h200: 989.4 TFLOP/s f16, 4800 GB/s, ridge 206.1 FLOP/byte"),
        "{text}"
    );
    for algorithm in ["S = QKᵀ alone", "unfused", "FA1", "FA2", "FA2, K/V in L2"] {
        let cell = format!("| {algorithm} ");
        assert_eq!(
            text.matches(&cell).count(),
            2,
            "{algorithm} forward and backward:\n{text}"
        );
    }
}

#[test]
fn ladder_shows_the_overflow_and_the_agreement() {
    let text = run("ladder --seq 64 --head-dim 16");
    let text = text.succeeded();
    assert!(
        text.contains("exp: 1.0, 1097.0, 403.5, inf, 22032.0"),
        "{text}"
    );
    let naive = text
        .lines()
        .find(|line| line.starts_with("| naive softmax "))
        .unwrap();
    assert!(naive.contains("NaN"), "{naive}");

    for options in [
        "",
        " --mask causal",
        " --mask causal --dropout 0.2 --seed 5",
    ] {
        let report = json(&format!("ladder --seq 200 --head-dim 40 --json{options}"));
        let rungs = report["rungs"].as_array().unwrap();
        assert_eq!(rungs.len(), 6);
        for rung in rungs {
            let error = rung["largest_error"].as_f64().unwrap();
            assert!(error < 4e-6, "{options}: {rung}");
        }
        let product = report["product_largest_error"].as_f64();
        assert_eq!(product.is_some(), !options.contains("dropout"));
    }
}

#[test]
fn ladder_climbs_the_kernels_in_the_simulator() {
    let report = json("ladder --backend sim --heads 2 --seq 45 --head-dim 24 --json");
    let rungs = report["rungs"].as_array().unwrap();
    let names: Vec<_> = rungs
        .iter()
        .map(|rung| rung["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "unfused, S and P stored",
            "one pass, a thread a column",
            "FA1 tiles",
            "simt",
            "mma",
            "wgmma"
        ]
    );
    assert_eq!(rungs[4]["dtype"], "bf16");
    assert_eq!(rungs[5]["dtype"], "bf16");
    for rung in rungs {
        assert!(rung["error_ratio"].as_f64().unwrap() <= 1.0, "{rung}");
        // The simulator gives counts, and no times.
        assert!(rung["ms"].is_null());
        assert!(rung["counts"]["global_bytes"].as_u64().unwrap() > 0);
    }
}

#[test]
fn layout_pictures_are_svgs_without_colour_codes_in_the_text() {
    let dir = TempDir::new().expect("a temporary folder");
    for what in [
        "mma --operand a",
        "mma --operand b",
        "mma --operand c",
        "mma --operand p",
        "ldmatrix --operand q",
        "ldmatrix --operand v",
        "wgmma --n 32",
        "swizzle --mode 64",
        "smem --head-dim 128 --storage plain --access accumulator",
    ] {
        let svg = dir.path().join("picture.svg");
        let outcome = run(&format!("layout {what} --svg {}", svg.display()));
        // Standard output is a pipe here.
        assert!(!outcome.succeeded().contains('\x1b'), "{what}");
        let svg = fs::read_to_string(svg).expect("it was written");
        let document = roxmltree::Document::parse(&svg).expect("it is XML");
        let texts: Vec<_> = document
            .descendants()
            .filter_map(|node| node.text())
            .collect();
        let title = outcome.stdout.lines().next().unwrap();
        assert!(
            texts.iter().any(|text| text.trim() == title),
            "{what}: {texts:?}"
        );
    }
}

#[test]
fn bad_arguments_are_refused_by_name() {
    for (command, argument) in [
        ("roofline --device a100", "--device"),
        ("roofline --device measured", "--device"),
        ("roofline --device measured --seq 0", "--seq"),
        ("roofline --seq 0", "--seq"),
        ("roofline --seq 64,-1", "--seq"),
        ("roofline --head-dim 0", "--head-dim"),
        ("roofline --head-dim 100000", "--head-dim"),
        ("roofline --heads 0", "--heads"),
        ("roofline --seq 1048576 --heads 1048576", "--seq"),
        ("roofline --dtype f64", "--dtype"),
        ("roofline --svg /nowhere/roof.svg", "--svg"),
        ("ladder --seq 0", "--seq"),
        ("ladder --seq 100000", "--seq"),
        ("ladder --seq 8192 --head-dim 256", "--seq"),
        ("ladder --head-dim 0", "--head-dim"),
        ("ladder --head-dim 257", "--head-dim"),
        ("ladder --dropout 1", "--dropout"),
        ("ladder --dropout -0.5", "--dropout"),
        ("ladder --dropout nan", "--dropout"),
        ("ladder --heads 2", "--heads"),
        ("ladder --backend sim --heads 0", "--heads"),
        ("ladder --backend sim --seq 0", "--seq"),
        ("ladder --backend sim --head-dim 300", "--head-dim"),
        ("ladder --backend sim --mask causal", "--mask"),
        ("ladder --backend sim --dropout 0.1", "--dropout"),
        ("ladder --backend cuda", "--backend"),
        ("layout", "command"),
        ("layout picture", "command"),
        ("layout wgmma --n 0", "--n"),
        ("layout wgmma --n 20", "--n"),
        ("layout smem --head-dim 0", "--head-dim"),
        ("layout smem --access sideways", "--access"),
        ("layout swizzle --mode 256", "--mode"),
        ("layout mma --svg /nowhere/mma.svg", "--svg"),
    ] {
        let outcome = run(command);
        let (refused, _) = outcome.failed(2);
        assert_eq!(refused, argument, "{command}: {}", outcome.stderr);
    }
}

/// Files that are not JSON are named, and missing measurements are reported with their dtype.
#[test]
fn roofline_says_what_it_leaves_out() {
    let dir = TempDir::new().expect("a temporary folder");
    let at = |name: &str| dir.path().join(name);
    fs::write(at("broken.json"), "[1, 2").expect("writable");
    fs::write(at("other.json"), "[1, 2]").expect("writable");
    fs::write(at("notes.txt"), "[1, 2").expect("writable");
    let row = r#"{"what": "fwd", "d": 128, "seq": 512, "causal": false, "batch": 2, "heads": 3, "peers": {},
        "ours": {"ms_sustained": 2.0, "ms_burst": 1.5}}"#;
    let good = format!(r#"{{"device": "NVIDIA H200", "dtype": "bf16", "rows": [{row}]}}"#);
    fs::write(at("good.json"), good).expect("writable");
    let folder = dir.path().display();
    let svg = at("roof.svg");
    for (dtype, is_found) in [("bf16", true), ("f16", false)] {
        let (what, svg) = (format!("--device h200 --dtype {dtype}"), svg.display());
        let outcome = run(&format!("roofline {what} --svg {svg} --results {folder}"));
        outcome.succeeded();
        let lines: Vec<_> = outcome.stderr.lines().collect();
        let broken = format!("{folder}/broken.json: EOF while parsing");
        assert!(lines[0].starts_with(&broken), "{lines:?}");
        let none = format!("no measurements of f16 on a GPU like h200 in {folder}: ");
        let says_none = lines.iter().any(|line| line.starts_with(&none));
        assert_eq!(says_none, !is_found, "{lines:?}");
        assert_eq!(lines.len(), 3 - usize::from(is_found), "{lines:?}");
    }
}

/// In a terminal, provided by `script`, the ladder draws a progress bar.
#[test]
fn ladder_shows_how_far_it_is() {
    // A ladder that takes most of a second: quick steps are not all drawn.
    let ladder = format!("{} ladder --seq 1024", paths::binary().display());
    let Ok(output) = Command::new("script")
        .args(["-qec", &ladder, "/dev/null"])
        .output()
    else {
        return not_run("ladder in a terminal: there is no `script`");
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("ladder [") && text.contains("] 0/12 "),
        "{text}"
    );
    let goes_on = (1..12).any(|step| text.contains(&format!("] {step}/12 ")));
    assert!(goes_on, "{text}");
    assert!(!run("ladder --seq 64").stderr.contains("ladder ["));
}

/// The stand-in for NVIDIA's driver launches nothing, so its apparent rates are no roof.
#[test]
fn a_gpu_that_computes_nothing_is_not_measured() {
    let Some(driver) = paths::fake_driver() else {
        return not_run("roofline of a wrong GPU: the fake driver is not packed");
    };
    let environment = [(cuda_loader::LIBRARY_VARIABLE, driver.as_os_str())];
    let outcome = ferroflash_in(["roofline", "--device", "measured"], &environment);
    let (_device, rest) = outcome.failed_on_device(1);
    let wrong = "measuring with probe_copy failed: byte 0 of ";
    assert!(rest.starts_with(wrong), "{rest}");
}

/// On a real GPU every rung is right too, and has a time.
#[test]
fn ladder_on_a_gpu() {
    let Some(mut gpu) = gpu_or_not_run("ladder") else {
        return;
    };
    let size = Size {
        heads: 3,
        seq: 700,
        head_dim: 80,
        seed: 1,
        runs: 2,
    };
    let rungs = climb(&mut gpu, &size).expect("it runs");
    assert!(
        rungs.len() >= 5,
        "the mma kernels run on every GPU: {rungs:#?}"
    );
    for (index, rung) in rungs.iter().enumerate() {
        assert!(rung.error_ratio <= 1.0, "{rung:?}");
        assert!(rung.ms.is_some_and(|ms| ms > 0.0), "{rung:?}");
        assert_eq!(rung.speed_up.is_some(), index > 0, "{rung:?}");
    }
}

/// The rates measured on a GPU are near its data sheet: hardly above it, and not far below.
#[test]
fn a_measured_roof_is_near_the_data_sheet() {
    let Some(mut gpu) = gpu_or_not_run("probes") else {
        return;
    };
    let effort = Effort {
        copy_bytes: 1 << 30,
        run_ms: 5.0,
        runs: 5,
    };
    let measured = probe::measure(&mut gpu, &effort).expect("it runs");
    let found = measured.spec(&gpu);
    // Not `eprintln!`, which the test harness captures.
    let _ = writeln!(stderr(), "{measured:?}");
    let Some(sheet) = GpuSpec::of_device(&found.name) else {
        return not_run(&format!("data sheet of {}", found.name));
    };
    for (what, found, promised, least) in [
        ("bandwidth", found.bandwidth, sheet.bandwidth, 0.5),
        // Newer tensor cores reach their rate only with instructions that these kernels do not use.
        ("tensor cores", found.tensor_flops, sheet.tensor_flops, 0.2),
        ("f32", found.f32_flops, sheet.f32_flops, 0.5),
        ("exponentials", found.exps, sheet.exps, 0.5),
    ] {
        let share = found / promised;
        // Clocks may boost a little beyond what a data sheet says.
        assert!(
            (least..1.15).contains(&share),
            "{what}: {share} of the data sheet"
        );
    }
}
