//! The command line of `genv-exporter publish`.

use std::path::PathBuf;

use clap::Args;

use super::address::ServiceAddress;
use super::bundle::Addresses;
use super::{Form, PublishOptions};

/// Arguments whose addresses are in none of the files of [`Form::Mixin`] and [`Form::GrafanaCom`].
const ADDRESSES_OF_SITE: [&str; 5] = ["exporters", "enforcers", "prometheus", "alertmanager", "grafana"];

const EXAMPLE: &str = "Example: Prometheus, Alertmanager and Grafana on this machine, without containers
  genv-exporter publish /etc/genv
  prometheus --config.file=/etc/genv/prometheus/prometheus.yml
  alertmanager --config.file=/etc/genv/prometheus/alertmanager.yml
  grafana server --homepath=/usr/share/grafana --config=/etc/genv/grafana/grafana.ini

An edited file is kept as long as the file to publish in its place stays the same. If that changes
as well, nothing is written. --force replaces edited files.
Exit codes: 0 everything is there, 1 failed, 2 wrong usage.";

/// Write the configuration of Prometheus, Alertmanager and Grafana.
///
/// The files are scrape targets, rules, alerts, data source and dashboards. The path of each written file is printed.
/// Files that are up to date stay untouched.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct PublishFlags {
    /// Folder to write to; created if there is none.
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Exporter that Prometheus scrapes; may be repeated. With the prefix https:// for an exporter with TLS.
    #[arg(
        long = "exporter-address",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9820",
        value_parser = ServiceAddress::without_path
    )]
    exporters: Vec<ServiceAddress>,

    /// Enforcer that Prometheus scrapes; may be repeated [default: none].
    #[arg(long = "enforcer-address", value_name = "HOST:PORT", value_parser = ServiceAddress::without_path)]
    enforcers: Vec<ServiceAddress>,

    /// Address of the exporter for users, in links from alerts to runbooks [default: the first exporter address].
    #[arg(long = "exporter-url", value_name = "URL")]
    exporter_url: Option<ServiceAddress>,

    /// Prometheus, as Grafana reaches it.
    #[arg(long = "prometheus-url", value_name = "URL", default_value = "http://127.0.0.1:9090")]
    prometheus: ServiceAddress,

    /// Alertmanager, as Prometheus reaches it.
    #[arg(
        long = "alertmanager-address",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9093",
        value_parser = ServiceAddress::without_path
    )]
    alertmanager: ServiceAddress,

    /// Grafana, as Prometheus reaches it.
    #[arg(
        long = "grafana-address",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:3000",
        value_parser = ServiceAddress::without_path
    )]
    grafana: ServiceAddress,

    /// Write only rules, alerts and dashboards, under the names that monitoring mixins have.
    #[arg(long, conflicts_with_all = ADDRESSES_OF_SITE)]
    mixin: bool,

    /// Write only the dashboards "Overview" and "Users and accounting", in the form for grafana.com.
    #[arg(
        long,
        conflicts_with_all = ADDRESSES_OF_SITE,
        conflicts_with = "exporter_url",
        conflicts_with = "mixin"
    )]
    for_grafana_com: bool,

    /// Replace files that were edited, too.
    #[arg(long)]
    force: bool,
}

impl From<PublishFlags> for PublishOptions {
    fn from(flags: PublishFlags) -> Self {
        let PublishFlags { folder, exporters, enforcers, prometheus, alertmanager, grafana, .. } = flags;
        Self {
            folder,
            form: match (flags.mixin, flags.for_grafana_com) {
                (_, true) => Form::GrafanaCom,
                (true, _) => Form::Mixin,
                _ => Form::Site,
            },
            addresses: Addresses {
                exporter_url: flags.exporter_url.unwrap_or_else(|| exporters[0].clone()),
                exporters,
                enforcers,
                prometheus,
                alertmanager,
                grafana,
            },
            replace_edited: flags.force,
        }
    }
}
