//! From `tls_server_config` to a configuration of rustls.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::client_certificates::{AllowedNames, AnyCertificate};
use super::format::{ClientAuthType, TlsServerConfig};
use super::negotiation::{cipher_suites, order_curves, versions};

/// A checked `tls_server_config`, whose files have not been read.
#[derive(Debug)]
pub(super) struct TlsSettings {
    certificate: PemSource,
    key: PemSource,
    clients: ClientAuth,
    versions: Vec<&'static SupportedProtocolVersion>,
    provider: Arc<CryptoProvider>,
    prefer_server_cipher_suites: bool,
}

#[derive(Clone, Debug)]
enum ClientAuth {
    Anonymous,
    Unverified { required: bool },
    Verified { required: bool, authority: PemSource },
    Named { verified_by: Option<PemSource>, names: Vec<String> },
}

/// A certificate or key: in a file, or in the configuration itself.
#[derive(Clone)]
enum PemSource {
    WebConfigFile { key: &'static str, path: PathBuf },
    Inline { key: &'static str, text: String },
}

impl std::fmt::Debug for PemSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::WebConfigFile { key, path } => write!(formatter, "{key}: {}", path.display()),
            Self::Inline { key, .. } => write!(formatter, "{key}: …"),
        }
    }
}

impl TlsSettings {
    /// Checks everything but the files, whose paths may be relative to `folder`. `None`: the configuration asks for no TLS.
    /// Differences from the configuration that do not weaken TLS are added to `notes`.
    pub(super) fn new(config: TlsServerConfig, folder: &Path, notes: &mut Vec<String>) -> Result<Option<Self>, String> {
        let pem = |inline_key, text: Option<String>, file_key, path: Option<String>| match (text, path) {
            (Some(_), Some(_)) => {
                Err(format!("tls_server_config has both {inline_key} and {file_key}; remove one of them"))
            }
            (Some(text), None) => Ok(Some(PemSource::Inline { key: inline_key, text })),
            (None, Some(path)) => Ok(Some(PemSource::WebConfigFile { key: file_key, path: folder.join(path) })),
            (None, None) => Ok(None),
        };
        let is_empty = config.is_empty();
        let certificate = pem("cert", config.cert, "cert_file", config.cert_file)?;
        let key = pem("key", config.key, "key_file", config.key_file)?;
        let authority = pem("client_ca", config.client_ca, "client_ca_file", config.client_ca_file)?;
        let (certificate, key) = match (certificate, key) {
            (Some(certificate), Some(key)) => (certificate, key),
            _ if is_empty => return Ok(None),
            (None, _) => {
                return Err("tls_server_config names no certificate; add cert_file".to_owned());
            }
            (_, None) => return Err("tls_server_config names no key; add key_file".to_owned()),
        };
        let clients = clients(config.client_auth_type.unwrap_or_default(), config.client_allowed_sans, authority)?;
        let versions = versions(config.min_version, config.max_version, notes)?;
        let mut provider = ring::default_provider();
        if let Some(names) = config.cipher_suites.filter(|names| !names.is_empty()) {
            provider.cipher_suites = cipher_suites(&names, notes)?;
        }
        if let Some(curves) = config.curve_preferences.filter(|curves| !curves.is_empty()) {
            order_curves(&mut provider, &curves, notes)?;
        }
        Ok(Some(Self {
            certificate,
            key,
            clients,
            versions,
            provider: Arc::new(provider),
            prefer_server_cipher_suites: config.prefer_server_cipher_suites.unwrap_or(true),
        }))
    }

    /// The files that [`Self::load`] reads.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let authority = match &self.clients {
            ClientAuth::Verified { authority, .. } => Some(authority),
            ClientAuth::Named { verified_by, .. } => verified_by.as_ref(),
            ClientAuth::Anonymous | ClientAuth::Unverified { .. } => None,
        };
        [Some(&self.certificate), Some(&self.key), authority]
            .into_iter()
            .filter_map(|pem| match pem {
                Some(PemSource::WebConfigFile { path, .. }) => Some(path.clone()),
                _ => None,
            })
            .collect()
    }

    /// Reads the files. An error names the file and its mistake.
    pub(super) fn load(&self) -> Result<Arc<ServerConfig>, String> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&self.versions)
            .map_err(|error| {
                format!(
                    "min_version, max_version, cipher_suites and curve_preferences leave no way to agree with a client: {error}"
                )
            })?;
        let verifier = self.verifier()?;
        let may_resume = verifier.is_none();
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let key = PrivateKeyDer::from_pem_slice(&self.key.read()?).map_err(|error| self.key.refused(&error))?;
        let mut config = builder
            .with_single_cert(self.certificate.certificates()?, key)
            .map_err(|error| format!("{:?} and {:?} do not belong together: {error}", self.certificate, self.key))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ignore_client_order = self.prefer_server_cipher_suites;
        if !may_resume {
            // A resumed session would skip the certificate's verification, its expiry included.
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok(Arc::new(config))
    }

    fn verifier(&self) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
        let unverified = |required| -> Arc<dyn ClientCertVerifier> {
            Arc::new(AnyCertificate { required, provider: Arc::clone(&self.provider) })
        };
        Ok(match &self.clients {
            ClientAuth::Anonymous => None,
            ClientAuth::Unverified { required } => Some(unverified(*required)),
            ClientAuth::Verified { required, authority } => Some(self.verified(*required, authority)?),
            ClientAuth::Named { verified_by, names } => {
                let inner = match verified_by {
                    Some(authority) => self.verified(true, authority)?,
                    None => unverified(true),
                };
                Some(Arc::new(AllowedNames { inner, names: names.clone() }))
            }
        })
    }

    fn verified(&self, required: bool, authority: &PemSource) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let mut roots = RootCertStore::empty();
        for certificate in authority.certificates()? {
            roots
                .add(certificate)
                .map_err(|error| format!("{authority:?} holds a certificate that is no authority: {error}"))?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&self.provider));
        let builder = if required { builder } else { builder.allow_unauthenticated() };
        builder.build().map_err(|error| format!("{authority:?} cannot be used: {error}"))
    }
}

impl TlsServerConfig {
    fn is_empty(&self) -> bool {
        let texts = [&self.cert, &self.key, &self.client_ca];
        let files = [&self.cert_file, &self.key_file, &self.client_ca_file];
        texts.into_iter().chain(files).all(Option::is_none)
            && self.client_auth_type.is_none()
            && self.client_allowed_sans.is_none()
            && self.min_version.is_none()
            && self.max_version.is_none()
            && self.cipher_suites.is_none()
            && self.curve_preferences.is_none()
    }
}

impl PemSource {
    fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::WebConfigFile { path, .. } => {
                fs::read(path).map_err(|error| format!("{self:?} cannot be read: {error}"))
            }
            Self::Inline { text, .. } => Ok(text.clone().into_bytes()),
        }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let certificates = CertificateDer::pem_slice_iter(&self.read()?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.refused(&error))?;
        if certificates.is_empty() {
            return Err(self.refused(&pem::Error::NoItemsFound));
        }
        Ok(certificates)
    }

    fn refused(&self, error: &pem::Error) -> String {
        format!("{self:?} is not in PEM format: {error}")
    }
}

fn clients(
    kind: ClientAuthType,
    names: Option<Vec<String>>,
    authority: Option<PemSource>,
) -> Result<ClientAuth, String> {
    use ClientAuthType as Kind;
    if authority.is_some() && kind == Kind::NoClientCert {
        return Err("tls_server_config has client_ca and requests no certificate of clients; \
                    add client_auth_type: RequireAndVerifyClientCert"
            .to_owned());
    }
    let required = matches!(kind, Kind::RequireAnyClientCert | Kind::RequireAndVerifyClientCert);
    if names.is_some() && !required {
        return Err("client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert (or \
                    RequireAnyClientCert): with other types a client may have no certificate"
            .to_owned());
    }
    let verified_by = match kind {
        Kind::VerifyClientCertIfGiven | Kind::RequireAndVerifyClientCert => {
            Some(authority.ok_or_else(|| format!("client_auth_type {kind:?} needs an authority; add client_ca_file"))?)
        }
        _ => None,
    };
    Ok(match (kind, names, verified_by) {
        (Kind::NoClientCert, ..) => ClientAuth::Anonymous,
        (_, Some(names), verified_by) => ClientAuth::Named { verified_by, names },
        (_, None, Some(authority)) => ClientAuth::Verified { required, authority },
        (_, None, None) => ClientAuth::Unverified { required },
    })
}
