# The Python package ucfs: libuckpt by ctypes.  Packages install it (packaging/).
python_files = %D%/ucfs/__init__.py %D%/ucfs/__main__.py %D%/ucfs/_arrays.py \
	%D%/ucfs/_commands.py %D%/ucfs/_fsspec.py %D%/ucfs/_handles.py %D%/ucfs/_library.py \
	%D%/ucfs/_mount.py %D%/ucfs/_options.py %D%/ucfs/_source.py %D%/ucfs/py.typed
EXTRA_DIST += $(python_files)
