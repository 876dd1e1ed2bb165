use super::super::DOCKER;
use super::*;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn container(arguments: &[OsString]) -> Option<ContainerCommand> {
    match command(arguments, &DOCKER.global, &DOCKER.container)? {
        ContainerRequest::Container(container) => Some(container),
        ContainerRequest::Compose => None,
    }
}

/// The values of `--gpus` in front of the image, and where the container's flags begin.
fn found(line: &str) -> Option<(Vec<String>, usize)> {
    let found = container(&words(line))?;
    assert_eq!(found.unknown, None, "{line}");
    let gpus = found.found.into_iter();
    let gpus = gpus.filter(|flag| flag.kind == FlagKind::Gpus);
    Some((gpus.filter_map(|gpus| gpus.value).collect(), found.flags))
}

#[test]
fn gpus_are_found_in_front_of_the_image_only() {
    for (line, values, flags) in [
        ("run --gpus all image", &["all"][..], 1),
        ("run --gpus=2 image --gpus 3", &["2"], 1),
        ("create --gpus 1 image", &["1"], 1),
        ("container run --gpus all image", &["all"], 2),
        ("container create --gpus all image", &["all"], 2),
        ("-D -H tcp://x --config dir --log-level=debug run --gpus all image", &["all"], 7),
        ("-Htcp://x -lx -c ctx --tls run --gpus all image", &["all"], 6),
        ("run image --gpus all", &[], 1),
        ("run -- image --gpus all", &[], 1),
        ("run --rm -it -v /a:/b -p80:80 --name gpus --gpus all image", &["all"], 1),
        ("run -itv /a:/b --gpus all image", &["all"], 1),
        ("run -ite A=1 --gpus all image", &["all"], 1),
        ("run -iteA=1 --gpus all image", &["all"], 1),
        ("run -e --gpus image", &[], 1),
        ("run -e=A --gpus all image", &["all"], 1),
        ("run --rm=false -t=false --gpus all image", &["all"], 1),
        ("run --name --gpus all --gpus all", &[], 1),
        ("run --entrypoint sh image -c --gpus=all", &[], 1),
        ("run --gpus all --gpus device=0 image", &["all", "device=0"], 1),
        ("run --gpus", &[], 1),
        ("run", &[], 1),
        ("run - --gpus all", &[], 1),
    ] {
        let values = values.iter().map(ToString::to_string).collect();
        assert_eq!(found(line), Some((values, flags)), "{line}");
    }
}

#[test]
fn every_way_to_write_a_flag_is_read() {
    for (line, expected) in [
        ("run --device a image", (FlagKind::Device, 2, "", "a")),
        ("run --device=a image", (FlagKind::Device, 1, "--device=", "a")),
        ("run -e A=1 image", (FlagKind::Env, 2, "", "A=1")),
        ("run -iteA=1 image", (FlagKind::Env, 1, "-ite", "A=1")),
        ("run -e=A=1 image", (FlagKind::Env, 1, "-e=", "A=1")),
        ("run --env=A=1 image", (FlagKind::Env, 1, "--env=", "A=1")),
        ("run --runtime nvidia image", (FlagKind::Runtime, 2, "", "nvidia")),
    ] {
        let (kind, position, prefix, value) = expected;
        let expected = Flag { kind, position, prefix: prefix.to_owned(), value: Some(value.to_owned()) };
        assert_eq!(container(&words(line)).unwrap().found, [expected], "{line}");
    }
}

#[test]
fn compose_matters_where_it_makes_containers() {
    let command = |line: &str| command(&words(line), &DOCKER.global, &DOCKER.container);
    for line in ["compose up -d", "-D compose -f x.yml --profile gpu run --rm x", "compose --project-name up create"] {
        assert_eq!(command(line), Some(ContainerRequest::Compose), "{line}");
    }
    for line in ["compose", "compose ps", "compose -f up ps", "compose exec x run"] {
        assert_eq!(command(line), None, "{line}");
    }
}

#[test]
fn other_commands_make_no_container() {
    let lines =
        "| ps | exec -it x run --gpus all | compose ps | container ls | container | --version | --nosuch run x | -D";
    for line in lines.split('|').chain(["image run"]) {
        assert_eq!(container(&words(line)), None, "{line}");
    }
}

#[test]
fn reading_ends_at_a_flag_that_is_not_known() {
    for (line, unknown) in [("run --gpus all --newest x --gpus 2 image", "--newest"), ("run --gpus all -tZ x", "-tZ")] {
        let found = container(&words(line)).unwrap();
        assert_eq!(found.unknown.as_deref(), Some(unknown));
        assert_eq!(found.found.len(), 1, "{line}");
    }
    // With a value behind the `=` nothing is unclear.
    assert_eq!(found("run --newest=x --gpus all image"), Some((vec!["all".to_owned()], 1)));
}

#[test]
fn bytes_that_are_no_text_are_not_taken_for_text() {
    use std::os::unix::ffi::OsStringExt;
    let mut line = words("run --gpus");
    line.push(OsString::from_vec(vec![b'a', 0xff]));
    let found = container(&line).unwrap();
    assert_eq!(found.found[0].value, None);
    line[1] = OsString::from_vec(b"--gpus=\xff".to_vec());
    assert_eq!(container(&line).unwrap().found[0].value, None);
}
