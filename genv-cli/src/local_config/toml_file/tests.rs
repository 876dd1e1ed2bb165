use std::fs;
use std::time::Duration;

use genv_core::model::MemoryAmount;
use genv_core::state::Configuration;
use genv_core::state::allocate::DeviceKind;
use rustix::fs::{FileType, Mode};

use super::*;

fn loaded(name: &str, content: &[u8]) -> Result<LocalConfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    let form = match name {
        "pyproject.toml" => Form::Pyproject,
        _ => Form::GenvToml,
    };
    load(&path, form).map_err(|error| {
        let error = error.to_string();
        let start = format!("cannot use {}: ", path.display());
        error.strip_prefix(&start).unwrap().to_owned()
    })
}

const ALL: &str = r#"
name = "my env; $(id)"
gpus = 2
gpu-memory = "4g"
gpu-type = ["a100", "rtx 4090,h100"]
gpu-memory-at-least = "40g"
for = "8h"
"#;

fn all() -> LocalConfig {
    let amount = |text| Some(MemoryAmount::from_person(text).unwrap());
    LocalConfig {
        configuration: Configuration {
            name: Some("my env; $(id)".to_owned()),
            gpus: Some(2),
            gpu_memory: amount("4g"),
        },
        kind: DeviceKind {
            types: ["a100", "rtx 4090", "h100"].map(str::to_owned).to_vec(),
            memory_at_least: amount("40g"),
        },
        lease: Some(Duration::from_secs(8 * 3600)),
    }
}

#[test]
fn every_key_is_read_from_a_file_of_its_own_and_from_a_project() {
    assert_eq!(loaded("genv.toml", ALL.as_bytes()), Ok(all()));
    let project = format!("[project]\nname = \"other\"\n[tool.genv]{ALL}[tool.ruff]\nfix = true\n");
    assert_eq!(loaded("pyproject.toml", project.as_bytes()), Ok(all()));
    let none = Ok(LocalConfig::default());
    for nothing in ["", "# nothing\n", "gpu-type = []\n"] {
        assert_eq!(loaded("genv.toml", nothing.as_bytes()), none, "{nothing}");
    }
    for (value, types) in [
        ("\"a100\"", &["a100"][..]),
        ("\" a100 , rtx 4090\"", &["a100", "rtx 4090"]),
        ("[\"a100\", \"h100\"]", &["a100", "h100"]),
    ] {
        let config = loaded("genv.toml", format!("gpu-type = {value}").as_bytes()).unwrap();
        assert_eq!(config.kind.types, types, "{value}");
    }
}

#[test]
fn an_error_has_the_line_the_key_and_the_correction() {
    let long = format!("name = \"{}\"", "x".repeat(129));
    let endless = format!("for = \"{}\"", "x".repeat(1025));
    let nested = format!("gpus = {}", "[".repeat(100_000));
    let large = format!("# {}", "x".repeat(1 << 20));
    for (content, start) in [
        ("gpus = -1", "line 1: gpus: -1 is not a number of devices: write an integer"),
        ("\n\ngpus = 0x1_0000_0000", "line 3: gpus: 0x100000000 is not a number"),
        ("gpus = \"2\"", "line 1: gpus: the value is of the type string: write an integer from 0 on, such as gpus = 2"),
        ("gpus = 1.5", "line 1: gpus: the value is of the type float: "),
        ("gpus.x = 1", "line 1: gpus: the value is of the type table: "),
        (
            "gpu-memory = 4",
            "line 1: gpu-memory: the value is of the type integer: write a string, such as gpu-memory = \"4g\"",
        ),
        ("gpu-memory = \"4\"", "line 1: gpu-memory: memory amount '4' means 4 bytes"),
        ("gpu-memory = \"\"", "line 1: gpu-memory: the memory amount is empty"),
        ("gpu-memory-at-least = \"abc\"", "line 1: gpu-memory-at-least: memory amount 'abc' is not a number"),
        ("gpu-type = 100", "line 1: gpu-type: the value is of the type integer: write a string or an array of strings"),
        ("gpu-type = [\"a100\", 100]", "line 1: gpu-type: the value is of the type integer: "),
        ("gpu-type = \"a100,\"", "line 1: gpu-type: a type is a part of a model's name"),
        ("for = \"8\"", "line 1: for: duration '8' lacks a unit: write 8s, 8m, 8h or 8d"),
        ("for = \"999999w\"", "line 1: for: a lease lasts 1s to "),
        ("name = \" \"", "line 1: name: a name has at least one character"),
        ("name = \"a\\u001B[2J\"", "line 1: name: the name 'a\\u{1b}[2J' has characters that cannot be printed"),
        (&long, "line 1: name: a name has at most 128 characters"),
        (&endless, "line 1: for: the value has more than 1024 bytes"),
        (
            "gpus = 1\ngpu = 2",
            "line 2: the key 'gpu' is unknown: the keys are name, gpus, gpu-memory, gpu-type, gpu-memory-at-least and for",
        ),
        ("[tool.genv]\ngpus = 1", "line 1: the key 'tool' is unknown: "),
        ("gpus = 1\ngpus = 2", "line 2: it is not TOML: duplicate key"),
        ("gpus = ", "line 1: it is not TOML: "),
        ("\"\x1b[2J\"", "line 1: it is not TOML: "),
        (&nested, "line 1: it is not TOML: "),
        (&large, "it has more than 1048576 bytes"),
    ] {
        let message = loaded("genv.toml", content.as_bytes()).unwrap_err();
        assert!(message.starts_with(start), "{message}");
        assert!(message.ends_with(". Correct it, or remove the file"), "{message}");
        assert!(!message.contains(char::is_control) && message.len() < 400, "{message:?}");
    }
    let message = loaded("genv.toml", b"name = \"\xff\"").unwrap_err();
    assert!(message.starts_with("it is not UTF-8"), "{message}");
    let message = loaded("pyproject.toml", b"[tool]\ngenv = 2\n").unwrap_err();
    let expected = "line 2: tool.genv is of the type integer: write a table [tool.genv]. Correct it, or remove its table [tool.genv]";
    assert_eq!(message, expected);
}

#[test]
fn a_project_counts_by_its_table_even_if_the_file_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pyproject.toml");
    let large = format!("[tool.genv]\n# {}", "x".repeat(1 << 20));
    for (content, expected) in [
        ("[tool.genv]\ngpus = 1".as_bytes(), true),
        (b"tool = {genv = {gpus = 1}}", true),
        (b"[tool]\ngenv.gpus = 1", true),
        (b"[project]\nname = \"genv\"", false),
        (b"[tool.genvoy]\nx = 1", false),
        (b"tool = 3\n# genv", false),
        (b"text = \"\"\"\n[tool.genv]\n\"\"\"", false),
        (b"<<<<<<< ours\n[tool.genvoy]", false),
        (b"<<<<<<< ours\n [ tool.genv ] # x", true),
        (b"name = \"genv \xff", false),
        (b"[tool.genv]\nname = \"\xff", true),
        (large.as_bytes(), true),
    ] {
        fs::write(&path, content).unwrap();
        let text = String::from_utf8_lossy(&content[..content.len().min(60)]);
        assert_eq!(has_table(&path), expected, "{text}");
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(!has_table(&path));
    fs::remove_dir(&path).unwrap();
    // A pipe keeps nobody waiting.
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    assert!(!has_table(&path));
}
