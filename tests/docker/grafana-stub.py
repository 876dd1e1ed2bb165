#!/usr/bin/python3
"""No Grafana: stands in for it where Grafana cannot be had. It reads the same environment and provisioning files, refuses
to start where one is missing or broken, keeps its data over a restart, and answers the few requests of Grafana's API that
show whether the stack's own files and scripts do their work: health, dashboards, folder permissions, a data source's proxy."""

import base64
import glob
import http.server
import json
import os
import signal
import sys
import urllib.error
import urllib.request

import yaml

DATA = os.environ["GF_PATHS_DATA"]
DATABASE = DATA + "/grafana.db"
VIEWER, EDITOR, ADMIN = range(3)
ROLES = {"Viewer": VIEWER, "Editor": EDITOR, "Admin": ADMIN}


class Broken(Exception):
    pass


def load(path, parse):
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Broken(f"{path}: {error}") from error


def provisioned(kind, key):
    folder = f"{os.environ['GF_PATHS_PROVISIONING']}/{kind}"
    paths = glob.glob(folder + "/*.y*ml")
    if not paths:
        raise Broken(f"{folder}: holds nothing")
    return [item for path in paths for item in load(path, yaml.safe_load)[key]]


def read_data_sources():
    sources = {source["uid"]: source for source in provisioned("datasources", "datasources")}
    for source in sources.values():
        if source["type"] != "prometheus" or not source["url"].startswith("http"):
            raise Broken(f"no data source: {source}")
    return sources


def read_dashboards():
    """By uid: the folder's uid and the dashboard."""
    dashboards = {}
    for provider in provisioned("dashboards", "providers"):
        path = provider["options"]["path"]
        files = glob.glob(path + "/**/*.json", recursive=True) if os.path.isdir(path) else [path]
        for file in files:
            dashboard = load(file, json.load)
            if dashboard["uid"] in dashboards:
                raise Broken(f"{file}: the uid {dashboard['uid']} is taken")
            dashboards[dashboard["uid"]] = (provider.get("folderUid", ""), dashboard)
    home = os.environ.get("GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH")
    if home:
        load(home, json.load)
    return dashboards


def read_database():
    if os.path.exists(DATABASE):
        return load(DATABASE, json.load)
    # Grafana takes its admin's password once.
    return {"password": os.environ.get("GF_SECURITY_ADMIN_PASSWORD", "admin"), "permissions": {}}


def write_database():
    with open(DATABASE + ".new", "w", encoding="utf-8") as file:
        json.dump(database, file)
    os.replace(DATABASE + ".new", DATABASE)


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, value, content_type="application/json"):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def role(self):
        """Of the one who asks; none: answered with 401."""
        sent = self.headers.get("Authorization")
        if sent is None:
            if os.environ.get("GF_AUTH_ANONYMOUS_ENABLED") == "true":
                return ROLES[os.environ.get("GF_AUTH_ANONYMOUS_ORG_ROLE", "Viewer")]
        elif sent == "Basic " + base64.b64encode(f"admin:{database['password']}".encode()).decode():
            return ADMIN
        self.answer(401, {"message": "Invalid username or password"})
        return None

    def do_GET(self):
        path = self.path.split("/")[1:]
        if path == ["api", "health"]:
            return self.answer(200, {"database": "ok", "version": "stub"})
        if path == ["metrics"]:
            return self.answer(200, b"# TYPE stub gauge\nstub 1\n", "text/plain; version=0.0.4")
        if (role := self.role()) is None:
            return None
        match path:
            case ["api", "dashboards", "uid", uid] if uid in dashboards:
                folder, dashboard = dashboards[uid]
                allowed = database["permissions"].get(folder, [{"role": "Viewer", "permission": 1}])
                if role < ADMIN and not any(role >= ROLES[item["role"]] for item in allowed):
                    return self.answer(403, {"message": "You'll need additional permissions"})
                return self.answer(200, {"dashboard": dashboard, "meta": {"folderUid": folder}})
            case ["api", "folders", uid, "permissions"] if role == ADMIN:
                return self.answer(200, database["permissions"].get(uid, []))
            case ["api", "datasources", "proxy", "uid", uid, *rest] if uid in sources:
                try:
                    with urllib.request.urlopen(sources[uid]["url"] + "/" + "/".join(rest), timeout=10) as response:
                        return self.answer(response.status, response.read())
                except urllib.error.URLError as error:
                    return self.answer(502, {"message": str(error)})
        return self.answer(404, {"message": "Not found"})

    def do_POST(self):
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if (role := self.role()) is None:
            return None
        match self.path.split("/")[1:]:
            case ["api", "folders", uid, "permissions"]:
                if role < ADMIN:
                    return self.answer(403, {"message": "Access denied"})
                if uid not in {folder for folder, _ in dashboards.values()}:
                    return self.answer(404, {"message": "folder not found"})
                if self.headers.get("Content-Type") != "application/json":
                    return self.answer(400, {"message": "bad request data"})
                try:
                    items = json.loads(sent)["items"]
                    assert all(item["role"] in ROLES and item["permission"] in (1, 2, 4) for item in items)
                except (AssertionError, KeyError, TypeError, ValueError):
                    return self.answer(400, {"message": "bad request data"})
                database["permissions"][uid] = items
                write_database()
                return self.answer(200, {"message": "Dashboard permissions updated"})
        return self.answer(404, {"message": "Not found"})


def end(_signal, _frame):
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
print("stub: this stands in for Grafana in tests", file=sys.stderr)
try:
    if os.getuid() != 472:
        raise Broken(f"it runs as {os.getuid()}, and Grafana's image as 472")
    sources, dashboards, database = read_data_sources(), read_dashboards(), read_database()
    write_database()
except (Broken, OSError, KeyError, TypeError) as error:
    sys.exit(f"stub: cannot start: {error!r}")
http.server.ThreadingHTTPServer(("", 3000), Handler).serve_forever()
