# shellcheck shell=bash
# What the scripts of this folder share: a temporary folder, and programs of Debian 13 in it.
export LC_ALL=C

folder=$(mktemp -d)
trap 'code=$?; rm -rf "$folder"; exit $((code != 0))' EXIT
# APT's sandbox user reads the folder too.
chmod 755 "$folder"

# fail WHAT: prints what is not as stated, and ends with 1.
fail() {
    printf 'Not as stated: %s\n' "$1" >&2
    exit 1
}

# debian_packages PACKAGE[=VERSION]...: downloads packages of Debian 13 and unpacks them into $folder/files.
# APT keeps its lists in $folder, takes Debian's archive from this machine's sources, and installs nothing.
debian_packages() {
    local archive package
    # shellcheck disable=SC2016 # APT's own variables
    archive=$(apt-get indextargets --format '$(CREATED_BY) $(ORIGIN) $(REPO_URI)' |
        sed -n '/security/d; s/^Packages Debian //p' | head -n 1)
    [[ -n $archive ]] || fail "this machine's APT has no Debian archive, or no lists of it: run apt-get update"
    mkdir -p "$folder"/apt/{lists/partial,cache/archives/partial,empty} "$folder/files"
    : >"$folder/apt/status"
    printf 'deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main non-free\n' \
        "$archive" >"$folder/apt/sources.list"
    cat >"$folder/apt/apt.conf" <<CONF
Dir::State::lists "$folder/apt/lists";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
Dir::Etc::SourceList "$folder/apt/sources.list";
Dir::Etc::SourceParts "$folder/apt/empty";
Dir::Etc::PreferencesParts "$folder/apt/empty";
APT::Architecture "amd64";
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
CONF
    export APT_CONFIG=$folder/apt/apt.conf
    apt-get -qq update
    (cd "$folder/apt/cache" && apt-get -qq download "$@")
    for package in "$folder"/apt/cache/*.deb; do
        dpkg-deb -x "$package" "$folder/files"
    done
}
