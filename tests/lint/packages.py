# SPDX-License-Identifier: Apache-2.0
"""packages.py RUN: the installed package ucfs reads the same without a mount, mounted, and
from a server whose certificate the system knows.  tests/lint/packages.sh runs it in a root
that is thrown away."""
import functools
import http.server
import os
import re
import ssl
import subprocess
import sys
import threading

import numpy
import ucfs

run = sys.argv[1]
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Also serves ranges of files."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        wanted = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = self.translate_path(self.path)
        if not wanted or not os.path.isfile(path):
            super().do_GET()
            return
        size = os.path.getsize(path)
        first, last = int(wanted[1]), min(int(wanted[2]), size - 1)
        with open(path, "rb") as file:
            file.seek(first)
            body = file.read(last + 1 - first)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", self.date_time_string(os.path.getmtime(path)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def serve():
    """Start a server for the run, and return its address."""
    os.makedirs(os.path.dirname(CERTIFICATES), exist_ok=True)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes",
                    "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", "/tmp/key.pem", "-out", CERTIFICATES], check=True)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Ranges, directory=run))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES, "/tmp/key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"https://127.0.0.1:{server.server_port}/"


def parameters(source):
    with ucfs.open(source) as checkpoint:
        tag = checkpoint[checkpoint.latest]
        return tag.name, {name: numpy.asarray(parameter.fp32)
                          for name, parameter in tag.parameters.items()}


tag_name, near = parameters(run)
assert near
with ucfs.mount(run) as mounted:
    for name, values in near.items():
        path = os.path.join(mounted, f"{tag_name}_universal", "zero", name, "fp32.pt")
        with open(path, "rb") as file:
            assert values.tobytes() in file.read(), name
_, far = parameters(serve())
assert far.keys() == near.keys()
for name, values in near.items():
    numpy.testing.assert_array_equal(far[name], values, name)
