# 451: one process writes 640 KiB by io_submit on O_DIRECT, others read the same buffered; after reaping, buffered reads must see new bytes.
import ctypes, mmap, os, sys, time
libc=ctypes.CDLL(None, use_errno=True)
class iocb(ctypes.Structure):
    _fields_=[('data',ctypes.c_uint64),('key',ctypes.c_uint32),('rw_flags',ctypes.c_uint32),('op',ctypes.c_uint16),('prio',ctypes.c_int16),('fd',ctypes.c_uint32),('buf',ctypes.c_uint64),('nbytes',ctypes.c_uint64),('offset',ctypes.c_int64),('r2',ctypes.c_uint64),('flags',ctypes.c_uint32),('resfd',ctypes.c_uint32)]
path=sys.argv[1]; rounds=int(sys.argv[2]); size=640*1024; piece=64*1024; n=size//piece
with open(path,'wb') as f: f.write(b'\0'*size)
ctx=ctypes.c_ulong(0); assert libc.syscall(206,n,ctypes.byref(ctx))==0
kids=[]
for _ in range(2):
    p=os.fork()
    if p==0:
        fd=os.open(path,os.O_RDONLY)
        while True: os.pread(fd,size,0)
    kids.append(p)
buf=mmap.mmap(-1,size); addr=ctypes.addressof(ctypes.c_char.from_buffer(buf))
fd=os.open(path,os.O_RDWR|os.O_DIRECT); rd=os.open(path,os.O_RDONLY); bad=None; t=time.time()
for r in range(1,rounds+1):
    b=bytes([r%250+1]); buf.seek(0); buf.write(b*size)
    cbs=[iocb(data=i,op=1,fd=fd,buf=addr+i*piece,nbytes=piece,offset=i*piece) for i in range(n)]
    arr=(ctypes.c_void_p*n)(*[ctypes.addressof(c) for c in cbs])
    k=libc.syscall(209,ctx,n,arr); assert k==n,(k,ctypes.get_errno())
    ev=(ctypes.c_uint64*(4*n))(); got=0
    while got<n:
        k=libc.syscall(208,ctx,1,n-got,ctypes.byref(ev,got*32),None); assert k>0; got+=k
    assert all(ev[i*4+2]==piece for i in range(n)), list(ev)
    back=os.pread(rd,size,0)
    if back!=b*size: bad=r; break
for p in kids: os.kill(p,9)
print('old bytes in round %d'%bad if bad else 'ok %d rounds %.2f s'%(rounds,time.time()-t)); sys.exit(bool(bad))
