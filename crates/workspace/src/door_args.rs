//! Command-line arguments of a listener: who comes in, under which names, with which certificate.

use std::path::PathBuf;

use clap::Args;
use tidegate_server::access::Access;
use tidegate_server::{ClientFiles, ConnectionLimits, Door, HostNames, Tls, TlsFiles};

use crate::{CommandError, bind};

/// Who may reach a listener, and how.
#[derive(Debug, Clone, Default, Args)]
pub struct DoorArgs {
    /// File with those who may come in, by token or certificate, written by `tidegate token`;
    /// required unless --listen is a loopback address. It is read again when it changes
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TOKENS")]
    tokens: Option<PathBuf>,
    /// Name that requests may ask for, beside localhost and addresses in digits; may be given
    /// several times
    #[arg(long = "host", value_name = "NAME", env = "TIDEGATE_HOST", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Certificate (PEM, with those that lead to its root) for HTTPS; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "TIDEGATE_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "TIDEGATE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Certificates (PEM) of the authorities whose client certificates are taken in place of
    /// tokens, from principals that `tidegate token new --certificate` names; read again when they
    /// change
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        requires = "tokens",
        env = "TIDEGATE_TLS_CLIENT_CA"
    )]
    tls_client_ca: Option<PathBuf>,
    /// Certificates that these authorities have revoked (PEM): a list of each authority in a chain;
    /// read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_client_ca", env = "TIDEGATE_TLS_CLIENT_CRL")]
    tls_client_crl: Option<PathBuf>,
}

impl DoorArgs {
    /// Binds the address `listen`, `HOST:PORT`.
    ///
    /// # Errors
    /// If the address cannot be bound, a file cannot be used, or everybody on a network would come
    /// in.
    pub async fn open(&self, listen: &str) -> Result<Door, CommandError> {
        let tls = self.tls_files().map(Tls::open).transpose()?;
        let access = self.tokens.as_deref().map(Access::from_file).transpose()?;
        let listener = bind(listen).await?;
        let address = listener.local_addr()?;
        let access = match access {
            Some(access) => access,
            None if address.ip().is_loopback() => Access::Open,
            None => {
                return Err(format!(
                    "{address} can be reached from other machines, so requests must show tokens: make one with `tidegate \
                     token new --tokens tokens.toml --role viewer --id NAME`, and name the file with --tokens tokens.toml; \
                     or listen on 127.0.0.1"
                )
                .into());
            }
        };
        if tls.is_none() && !address.ip().is_loopback() {
            tracing::warn!(%address, "tokens and rows cross the network in the clear: give --tls-cert and --tls-key, or put a proxy with TLS in front");
        }
        let names = HostNames::new(self.hosts.iter().cloned());
        Ok(Door { listener, access, names, tls, limits: ConnectionLimits::of_process(), audit: None })
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        let (cert, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        let crl = self.tls_client_crl.clone();
        let clients = self.tls_client_ca.clone().map(|ca| ClientFiles { ca, crl });
        Some(TlsFiles { cert, key, clients })
    }
}
