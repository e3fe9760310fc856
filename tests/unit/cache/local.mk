# Units of ckpt/remote/cache.
unit_tests += %D%/test_cache
