# All programs in one image. The whole repository is the build's context:
#
#   docker build --build-arg GENV_REVISION="$(git rev-parse --short=12 HEAD)" --tag genv:0.1.0 .

FROM rust:1.95-slim-bookworm AS build
# What --version and genv_exporter_build_info tell; git's own files are not part of the context.
ARG GENV_REVISION=unknown
ARG PACKAGES="genv-cli genv-exporter genv-enforcer genv-shims"
ARG PROGRAMS="genv genv-exporter genv-enforcer genv-shim"
WORKDIR /source
COPY . .
# Not built in the source's own target folder: a cache is no part of the layer, hence the copies.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/target \
    cargo build --profile dist --locked --target-dir /target $(printf -- '--package %s ' $PACKAGES) \
    && install -D --target-directory=/programs $(printf -- '/target/dist/%s ' $PROGRAMS)

FROM debian:bookworm-slim
# Names from SSSD come through its library, and through the daemon's socket on the host.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnss-sss \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log
COPY --from=build /programs/ /usr/local/bin/
# Users are the host's, seen under /host. Links, because useradd(8) and its like replace /etc/passwd, and a file that
# was mounted would stay the old one. Without /host they lead nowhere, and users are numbers.
RUN printf '%s\n' 'passwd: files sss' 'group: files sss' 'hosts: files dns' >/etc/nsswitch.conf \
    && mkdir -p /host /var/lib/sss /var/lib/genv-enforcer \
    && rm -rf /var/lib/sss/pipes /var/lib/sss/mc /run/nscd \
    && ln -s /host/var/lib/sss/pipes /host/var/lib/sss/mc /var/lib/sss/ \
    && ln -s /host/run/nscd /run/nscd \
    && ln -sf /host/etc/passwd /host/etc/group /etc/
CMD ["genv-exporter", "--web.listen-address=:9820"]
