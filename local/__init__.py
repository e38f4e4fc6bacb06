"""The local stack: everything `./run`, `./run demo` and `./test` do.

Map: `prepare` makes `.venv/` and the function binaries (standard library only); `guard` ends what was
started, however its starter ends; `ministack` is the local AWS; `expand` turns the real `template.yaml` into
what ministack can run; `install` puts Headgate and the demo install there; `vendor` plays the application of
the demo install; `demo` plays the main job and checks every answer; `check` is `./test`.
"""
