//! Certificates made for a test, and TLS clients that use them.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};

use crate::test_server::{TestClient, TestServer};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

pub(crate) struct TestCertificate {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A server's or client's certificate with these names.
    pub(crate) fn issue(&self, names: Vec<SanType>) -> TestCertificate {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        TestCertificate { certificate: params.signed_by(&key, &self.0).unwrap().pem(), key: key.serialize_pem() }
    }

    pub(crate) fn issue_for_host(&self, name: &str) -> TestCertificate {
        self.issue(vec![dns(name)])
    }
}

pub(crate) fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

/// A client that trusts one authority and knows the server as `localhost`.
pub(crate) struct TlsClient {
    roots: RootCertStore,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    versions: Vec<&'static SupportedProtocolVersion>,
}

impl TlsClient {
    pub(crate) fn trusting(authority: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority.0.der().clone()).unwrap();
        Self { roots, identity: None, versions: vec![&version::TLS13] }
    }

    pub(crate) fn with(mut self, identity: &TestCertificate) -> Self {
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        self.identity = Some((vec![certificate], key));
        self
    }

    pub(crate) fn speaking(mut self, version: &'static SupportedProtocolVersion) -> Self {
        self.versions = vec![version];
        self
    }

    /// A connector that resumes its TLS sessions.
    pub(crate) fn connector(&self) -> TlsConnector {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&self.versions)
            .unwrap()
            .with_root_certificates(self.roots.clone());
        let config = match &self.identity {
            Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        TlsConnector::from(Arc::new(config))
    }

    /// Makes a handshake. With TLS 1.3 a refusal by the server arrives only later: see [`TlsClient::status`].
    pub(crate) async fn connect(&self, server: &TestServer) -> std::io::Result<TestClient<TlsStream<TcpStream>>> {
        shake_hands(&self.connector(), server).await.map(TestClient::new)
    }

    /// The status of `GET /`, or `None` if the server refuses the connection.
    pub(crate) async fn status(&self, server: &TestServer) -> Option<u16> {
        let mut client = self.connect(server).await.ok()?;
        let request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        client.try_send(request).await.ok()?;
        let response = String::from_utf8(client.rest().await).unwrap();
        let status = response.strip_prefix("HTTP/1.1 ")?.get(..3)?;
        Some(status.parse().unwrap())
    }
}

pub(crate) async fn shake_hands(
    connector: &TlsConnector,
    server: &TestServer,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server.address).await?;
    connector.connect("localhost".try_into().unwrap(), stream).await
}
