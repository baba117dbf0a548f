"""`python -m scripted_llm --port 8000 --path hello.txt --content hi`, from `tests/`."""

import argparse
import threading

from . import ScriptedLlm, WriteOneFile

parser = argparse.ArgumentParser(description="A scripted model server on loopback.")
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--path", default="hello.txt", help="the file to write")
parser.add_argument("--content", default="hello\n")
options = parser.parse_args()
with ScriptedLlm(WriteOneFile(options.path, options.content), port=options.port) as llm:
    print(llm.url, flush=True)
    threading.Event().wait()
