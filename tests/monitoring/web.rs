//! The exporter on the network: secrets, floods, and its end.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::http;
use genv_tests::nvml_sim::Simulation;
use genv_tests::prometheus::Prometheus;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn write_certificates(folder: &Path) -> Result<()> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    std::fs::write(folder.join("authority.pem"), authority.pem())?;
    for name in ["server", "client"] {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        std::fs::write(folder.join(format!("{name}.pem")), certificate.pem())?;
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem())?;
    }
    Ok(())
}

fn sign_in(folder: &Path, password: &str, with_certificate: bool) -> String {
    let folder = folder.display();
    let certificate = format!(", cert_file: {folder}/client.pem, key_file: {folder}/client.key");
    let certificate = if with_certificate { certificate.as_str() } else { "" };
    format!(
        "scheme: https\n\
         tls_config: {{ca_file: {folder}/authority.pem{certificate}}}\n\
         basic_auth: {{username: prometheus, password: '{password}'}}\n"
    )
}

#[test]
fn prometheus_needs_the_certificate_and_the_password_to_scrape() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_certificates(folder.path())?;
    let web_config = folder.path().join("web.yml");
    std::fs::write(
        &web_config,
        format!(
            "tls_server_config:\n\
             \x20 cert_file: server.pem\n\
             \x20 key_file: server.key\n\
             \x20 client_auth_type: RequireAndVerifyClientCert\n\
             \x20 client_ca_file: authority.pem\n\
             basic_auth_users:\n\
             \x20 prometheus: '{}'\n",
            bcrypt::hash("correct horse", 4)?
        ),
    )?;
    let simulation = Simulation::new("version: 1\nhosts: [{name: gpu01, devices: [{count: 2}]}]\n");
    let exporter = Setup::with_scenario(&simulation)?
        .flag(&format!("--web.config.file={}", web_config.display()))
        .guarded()
        .start()?;
    for (password, with_certificate, complaint) in [
        ("correct horse", true, None),
        ("wrong horse", true, Some("401")),
        ("correct horse", false, Some("certificate")),
    ] {
        let more = sign_in(folder.path(), password, with_certificate);
        let prometheus = Prometheus::start_with("prometheus", exporter.port(), &more)?;
        if let Some(complaint) = complaint {
            prometheus.wait_for_value("up", 0.0)?;
            let targets = prometheus.ask("/api/v1/targets", &[])?.to_string();
            ensure!(targets.contains(complaint), "{password}: {targets}");
            ensure!(prometheus.query("genv_host_up")?.is_empty());
        } else {
            prometheus.wait_for_value("sum(genv_device_up)", 2.0)?;
        }
    }
    Ok(())
}

/// An exporter whose metrics are too large for the buffers of a connection.
fn large() -> Result<(Simulation, Exporter)> {
    let mut scenario = String::from(
        "version: 1\nusers: {somebody: 2001}\nhosts:\n- environments: []\n  devices: [{count: 8}]\n  processes:\n",
    );
    for pid in 100_000..105_000 {
        let devices: String = (0..8).map(|index| format!("{{index: {index}, memory: 1mi}}, ")).collect();
        writeln!(scenario, "  - {{pid: {pid}, user: somebody, claim: none, devices: [{devices}]}}")?;
    }
    let simulation = Simulation::new(&scenario);
    let exporter =
        Setup::with_scenario(&simulation)?.flag("--interval=2s").flag("--collector.processes.limit=100000").start()?;
    exporter.wait_for("all processes", |scrape| scrape.all("genv_process_memory_used_bytes", &[]).len() == 8 * 5000)?;
    Ok((simulation, exporter))
}

/// A client that has asked, and reads the first part of the answer only.
fn slow_client(exporter: &Exporter) -> Result<TcpStream> {
    let mut client = http::connect(exporter.port())?;
    client.write_all(REQUEST)?;
    let mut beginning = [0; 12];
    client.read_exact(&mut beginning)?;
    ensure!(&beginning == b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&beginning));
    Ok(client)
}

#[test]
fn the_41st_request_at_once_is_refused_and_one_that_runs_is_finished_before_the_exporter_ends() -> Result<()> {
    let (_simulation, mut exporter) = large()?;
    let whole = exporter.get("/metrics")?;
    let mut slow = (0..40).map(|_| slow_client(&exporter)).collect::<Result<Vec<_>>>()?;
    ensure!(exporter.get("/metrics")?.status == 503);
    ensure!(exporter.get("/-/healthy")?.status == 200);

    slow.truncate(1);
    exporter.signal_terminate()?;
    // It listens no more, and still writes.
    while http::connect(exporter.port()).is_ok() {
        std::thread::yield_now();
    }
    let mut rest = Vec::new();
    slow[0].read_to_end(&mut rest)?;
    let answer = http::read_response([b"HTTP/1.1 200".as_slice(), &rest].concat().as_slice())?;
    let stated: usize = answer.header("content-length").context("no length")?.parse()?;
    assert_eq!(answer.body.len(), stated);
    ensure!(answer.body.len() > whole.body.len() / 2);
    let status = exporter.terminate()?;
    ensure!(status.success(), "{status}: {}", exporter.log());
    Ok(())
}
