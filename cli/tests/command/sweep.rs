//! `ferroflash bench --sweep`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferroflash_tests::command::{ferroflash, run};
use ferroflash_tests::paths;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The points in sweep.json after a sweep of `options` into `folder`.
fn sweep(folder: &Path, options: &str) -> Vec<Value> {
    let folder_name = folder.to_str().expect("a plain name");
    let arguments = ["bench", "--sweep", folder_name, "--backend", "cpu"];
    ferroflash(arguments.into_iter().chain(options.split_whitespace())).succeeded();
    points(folder)
}

fn points(folder: &Path) -> Vec<Value> {
    let json = fs::read_to_string(folder.join("sweep.json")).expect("it was written");
    let points: Value = serde_json::from_str(&json).expect("it is whole");
    points.as_array().expect("it is a list").clone()
}

/// The texts of the picture.
fn texts(folder: &Path) -> Vec<String> {
    let svg = fs::read_to_string(folder.join("sweep.svg")).expect("it was written");
    let document = roxmltree::Document::parse(&svg).expect("it is XML");
    let texts = document.descendants().filter_map(|node| node.text());
    texts.map(|text| text.trim().to_owned()).collect()
}

fn rows(folder: &Path) -> usize {
    let csv = fs::read_to_string(folder.join("sweep.csv")).expect("it was written");
    csv.lines().count() - 1
}

/// Points that were measured are not measured again.
#[test]
fn a_sweep_goes_on_where_it_was() {
    let dir = TempDir::new().expect("a temporary folder");
    let one = "--batch 1 --heads 1 --head-dim 8";
    let first = sweep(dir.path(), &format!("{one} --seqs 16,32"));
    assert_eq!(first.len(), 2);
    let both = sweep(dir.path(), &format!("{one} --seqs 16,32,48"));
    // Times differ from run to run: these are the first run's.
    assert_eq!(both[..2], first[..]);
    assert_eq!(both[2]["seq"], 48);
    assert_eq!(rows(dir.path()), 3);
    let title = "Forward attention, f32, head_dim 8, 1 head, batch 1, CPU";
    assert!(texts(dir.path()).iter().any(|text| text.starts_with(title)));

    // Another problem is another line, not a point of this one.
    let others = [
        ("--mask causal", ", causal"),
        ("--window-left 3 --softcap 5", ", window 3:∞, softcap 5"),
        (
            "--alibi --layout bhsd --softmax-scale 0.5",
            ", scale 0.5, ALiBi, bhsd",
        ),
    ];
    for (options, _) in others {
        sweep(dir.path(), &format!("{one} --seqs 16 {options}"));
    }
    let all = points(dir.path());
    assert_eq!(all[..3], both[..]);
    assert_eq!(all.len(), 3 + others.len());
    let texts = texts(dir.path());
    for (_, case) in others.into_iter().chain([("", "")]) {
        let who = format!("fa_fwd_cpu_f32_tiled, f32, head_dim 8, 1 head, batch 1{case}");
        assert!(texts.contains(&who), "{who} in {texts:?}");
    }
}

/// Killed in the middle of a measurement, a sweep leaves whole files, and goes on from them.
#[test]
fn a_killed_sweep_is_resumed() {
    let dir = TempDir::new().expect("a temporary folder");
    let options = LONG;
    let mut child = started(dir.path(), options);
    child.kill().expect("it still runs");
    let status = child.wait().expect("it ends");
    assert!(!status.success(), "it was not done yet");
    let before = points(dir.path());
    assert_eq!(before.len(), 1);
    assert_eq!(rows(dir.path()), 1);

    let after = sweep(dir.path(), options);
    assert_eq!(after.len(), 2);
    assert_eq!(after[0], before[0]);
    assert_eq!(after[1]["seq"], 2048);
}

/// Starts a sweep whose second point takes seconds, and returns when its first is written.
fn started(folder: &Path, options: &str) -> Child {
    let child = Command::new(paths::binary())
        .args(["bench", "--backend", "cpu", "--sweep"])
        .arg(folder)
        .args(options.split(' '))
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let started = Instant::now();
    while !folder.join("sweep.svg").exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "no point yet");
        sleep(Duration::from_millis(5));
    }
    child
}

const LONG: &str = "--batch 1 --heads 2 --head-dim 64 --seqs 16,2048";

/// It would write without the points that the first has not written yet.
#[test]
fn a_second_sweep_into_the_folder_is_refused() {
    let dir = TempDir::new().expect("a temporary folder");
    let mut child = started(dir.path(), LONG);
    let folder = dir.path().to_str().expect("a plain name");
    let second = format!("bench --backend cpu --sweep {folder} {LONG}");
    let outcome = ferroflash(second.split(' '));
    child.kill().expect("it still runs");
    child.wait().expect("it ends");
    let (argument, rest) = outcome.failed(2);
    assert_eq!(argument, "--sweep");
    let wrong = format!("{folder}: another sweep is writing to it; ");
    assert!(rest.starts_with(&wrong), "{rest}");
}

/// A forced variant that cannot run is refused, as it is without a sweep.
#[test]
fn a_sweep_of_nothing_is_refused() {
    let dir = TempDir::new().expect("a temporary folder");
    let folder = dir.path().to_str().expect("a plain name");
    let problem = "--batch 1 --heads 1 --head-dim 8 --seqs 16 --backend cpu --force mma";
    let command = format!("bench --sweep {folder} {problem}");
    let outcome = ferroflash(command.split(' '));
    let (argument, rest) = outcome.failed(2);
    assert_eq!(argument, "--force");
    let wrong = "variant mma cannot run this problem here: ";
    assert!(rest.starts_with(wrong), "{rest}");
    let left = fs::read_dir(dir.path()).expect("readable").count();
    assert_eq!(left, 0);
}

/// Earlier points are written again digit for digit, whatever characters their names hold.
#[test]
fn earlier_points_stay_as_they_are() {
    let dir = TempDir::new().expect("a temporary folder");
    let one = "--batch 1 --heads 1 --head-dim 8";
    sweep(dir.path(), &format!("{one} --seqs 8"));
    let json = fs::read_to_string(dir.path().join("sweep.json")).expect("it was written");
    let number = points(dir.path())[0]["tflops"].to_string();
    // serde_json's faster number parser reads this as …284.
    let exact = "0.014285714285714285";
    let json = json.replace(&number, exact);
    let json = json.replace("fa_fwd_cpu", "\\u0001fa\\u001b_cpu");
    fs::write(dir.path().join("sweep.json"), &json).expect("it can be written");
    let points = sweep(dir.path(), &format!("{one} --seqs 8,16"));
    assert_eq!(points.len(), 2);
    let text = fs::read_to_string(dir.path().join("sweep.json")).expect("it was written");
    assert!(text.contains(exact), "{text}");
    // The picture is still XML.
    assert!(
        texts(dir.path())
            .iter()
            .any(|text| text.starts_with('\u{fffd}'))
    );
}

/// A file as `bench/side_by_side.py --json` writes it: two sizes in 64 tokens of 16 components.
fn side_by_side() -> Value {
    let times = |ms: f64| json!({"ms_sustained": ms, "ms_burst": ms / 2.0, "clock_mhz": 1600.0, "watts": null});
    let row = |d, seq, causal, what, cudnn: f64| {
        json!({"what": what, "d": d, "seq": seq, "causal": causal, "batch": 64 / seq, "heads": 16 / d, "dtype": "f32",
               "ours": times(1.5), "old": null, "peers": {"cudnn": times(cudnn)}, "ratios": {}})
    };
    json!({"device": "NVIDIA H200", "dtype": "f32", "rows": [
        row(8, 16, true, "fwd", 0.5),
        row(8, 32, true, "fwd", 0.25),
        // None of these problems is in the sweep.
        row(8, 32, false, "fwd", 7.0),
        row(4, 32, true, "fwd", 7.0),
        row(8, 64, true, "fwd", 7.0),
        row(8, 32, true, "bwd", 7.0),
    ]})
}

const OF_PEERS: &str = "--tokens 64 --heads 2 --head-dim 8 --mask causal --seqs 16,32";

#[test]
fn peers_have_lines_of_their_own() {
    let dir = TempDir::new().expect("a temporary folder");
    let (folder, file) = (dir.path().join("sweep"), dir.path().join("peers.json"));
    fs::write(&file, side_by_side().to_string()).expect("it can be written");
    let options = format!("{OF_PEERS} --peers {}", file.display());
    let points = sweep(&folder, &options);
    let peers: Vec<_> = points
        .iter()
        .filter(|point| point["variant"] == "peer")
        .collect();
    assert_eq!((points.len(), peers.len()), (4, 2));
    for (peer, (batch, seq, ms)) in peers.iter().zip([(4, 16, 0.5), (2, 32, 0.25)]) {
        assert_eq!(peer["kernel"], "cudnn");
        assert_eq!(peer["device"], "NVIDIA H200");
        assert_eq!((&peer["batch"], &peer["seq"]), (&json!(batch), &json!(seq)));
        assert_eq!(peer["ms_sustained"], ms);
        assert_eq!(peer["ms_burst"], ms / 2.0);
        assert_eq!(peer["clock_mhz"], 1600.0);
        assert!(peer["watts"].is_null());
        // Only visible pairs count.
        let flops = 4.0 * f64::from(batch * 2 * 8 * seq * (seq + 1)) / 2.0;
        let tflops = peer["tflops"].as_f64().unwrap();
        assert!((tflops * ms * 1e9 / flops - 1.0).abs() < 1e-12);
    }
    assert_eq!(rows(&folder), 4);
    let texts = texts(&folder);
    assert!(
        texts.contains(&"cudnn on NVIDIA H200".to_owned()),
        "{texts:?}"
    );

    // A newer file replaces the older one's points, and a sweep without a file keeps them.
    let newer = side_by_side().to_string().replace("0.25", "0.75");
    fs::write(&file, newer).expect("it can be written");
    assert_eq!(sweep(&folder, &options).len(), 4);
    let kept = sweep(&folder, OF_PEERS);
    let of_32 = kept
        .iter()
        .find(|point| point["variant"] == "peer" && point["seq"] == 32);
    assert_eq!(of_32.expect("it is kept")["ms_sustained"], 0.75);
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let dir = TempDir::new().expect("a temporary folder");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("it can be written");
        path.display().to_string()
    };
    let good = side_by_side().to_string();
    let peers = file("peers.json", &good);
    let no_json = file("no.json", "[1, 2");
    let list = file("list.json", "[]");
    let no_rate = file("rate.json", &good.replace("0.25", "-1.0"));
    let no_size = file("size.json", &good.replace("\"batch\":2", "\"batch\":0"));
    let swept = dir.path().join("swept");
    fs::create_dir(&swept).expect("it can be made");
    fs::write(swept.join("sweep.json"), "{").expect("it can be written");
    let swept = swept.display();
    let x = dir.path().join("x").display().to_string();
    let one = "--batch 1 --heads 2 --head-dim 8 --seqs 16";
    for (arguments, argument) in [
        (format!("--sweep /proc/x {one}"), "--sweep"),
        (format!("--sweep {swept} {one}"), "--sweep"),
        (
            format!("--sweep {x} --batch 1 --heads 1 --head-dim 8 --seqs 0"),
            "--seqs",
        ),
        (format!("--sweep {x} --seq-q 8 {one}"), "--sweep"),
        (
            format!("--sweep {x} --tokens 0 --heads 1 --head-dim 8"),
            "--tokens",
        ),
        (format!("--sweep {x} --tokens 8 {one}"), "--tokens"),
        (
            format!("--sweep {x} {one} --peers /nowhere/peers.json"),
            "--peers",
        ),
        (format!("--sweep {x} {one} --peers {no_json}"), "--peers"),
        (format!("--sweep {x} {one} --peers {list}"), "--peers"),
        (
            format!("--sweep {x} {OF_PEERS} --peers {no_rate}"),
            "--peers",
        ),
        (
            format!("--sweep {x} {OF_PEERS} --peers {no_size}"),
            "--peers",
        ),
        // Valid files with other problems.
        (format!("--sweep {x} {one} --peers {peers}"), "--peers"),
        (
            format!("--sweep {x} {OF_PEERS} --dtype bf16 --peers {peers}"),
            "--peers",
        ),
        (
            format!("--sweep {x} {OF_PEERS} --softcap 5 --peers {peers}"),
            "--peers",
        ),
        (
            format!("--sweep {x} {OF_PEERS} --heads-kv 1 --peers {peers}"),
            "--peers",
        ),
        (
            format!("--batch 1 --heads 2 --head-dim 8 --seq-q 8 --seq-kv 8 --peers {peers}"),
            "--peers",
        ),
        (
            "--tokens 8 --heads 1 --head-dim 8 --seq-q 8 --seq-kv 8".to_owned(),
            "--tokens",
        ),
        (
            "--batch 1 --heads 1 --head-dim 8 --seq-kv 8".to_owned(),
            "--seq-q",
        ),
        (
            "--heads 1 --head-dim 8 --seq-q 8 --seq-kv 8".to_owned(),
            "--batch",
        ),
    ] {
        let command = format!("bench --backend cpu {arguments}");
        let outcome = run(&command);
        let (refused, _) = outcome.failed(2);
        assert_eq!(refused, argument, "{command}: {}", outcome.stderr);
    }
    // A sweep's arguments are refused without --sweep, whatever else is missing.
    for (argument, others) in [
        ("--tokens 128", ""),
        ("--tokens 128", "--seq-q 8"),
        ("--seqs 512", "--batch 1"),
        ("--seqs 512", "--batch 1 --seq-q 8 --seq-kv 8"),
        ("--peers x.json", "--varlen 8"),
    ] {
        let command = format!("bench --heads 2 --head-dim 64 {argument} {others}");
        let outcome = run(&command);
        let (name, _) = argument.split_once(' ').expect("with a value");
        let rest = "only a sweep has it; with --sweep FOLDER, or leave it out";
        assert_eq!(outcome.failed(2), (name, rest), "{command}");
    }
    assert!(
        !Path::new(&x).join("sweep.json").exists(),
        "nothing was measured"
    );
}
