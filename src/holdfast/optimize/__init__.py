"""Make a trained model fast to serve, and prove that it still gives the same answers.

result = optimize(subject_spec, Path("bundle"))      # pipeline.py: prepare, build, measure, judge, bundle
model = bundle.open_bundle(Path("bundle"))           # bundle.py: checked against its digests
model.predict([windows])                             # numpy in, numpy out; only the chosen engine is imported

Torch is imported only in child processes that build or run a torch engine.
"""
