#!/usr/bin/python3
"""Stands in for Grafana, which cannot be had for the tests, towards grafana/start.sh, the health check and Prometheus. As Grafana
it takes the admin's password at its first start. It notes how it is started, and each request for a change."""

import base64
import http.server
import os
import signal

DATA = os.environ["GF_PATHS_DATA"]
DATABASE = DATA + "/grafana.db"


def note(line):
    with open(DATA + "/noted", "a", encoding="utf-8") as file:
        print(line, file=file)


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        self.answer(200)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        status = 200 if self.headers["Authorization"] == f"Basic {admin}" else 401
        note(f"{status} {self.path} {self.headers['Content-Type']} {body}")
        self.answer(status)


# An exception of the handler, as by sys.exit, is ignored while Python is importing.
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
if not os.path.exists(DATABASE):
    with open(DATABASE, "w", encoding="utf-8") as file:
        file.write("admin:" + os.environ.get("GF_SECURITY_ADMIN_PASSWORD", "admin"))
with open(DATABASE, "rb") as file:
    admin = base64.b64encode(file.read()).decode()
note("anonymous " + os.environ["GF_AUTH_ANONYMOUS_ENABLED"])
address = (os.environ.get("GF_SERVER_HTTP_ADDR", ""), int(os.environ.get("GF_SERVER_HTTP_PORT", "3000")))
http.server.ThreadingHTTPServer(address, Handler).serve_forever()
