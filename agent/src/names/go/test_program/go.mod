module varve

go 1.18
