"""Only what pyproject.toml cannot say: the C core is built by cffi in API mode."""

from setuptools import setup

setup(cffi_modules=["native/build.py:ffibuilder"])
